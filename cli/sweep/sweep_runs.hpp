#pragma once

#include "core/text/document.hpp"
#include "core/units.hpp"
#include "results/sweep/sweep.hpp"
#include "results/sweep/sweep_store.hpp"
#include "results/sweep/sweep_table.hpp"
#include "sim/platform/platform.hpp"

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace isobar::cli {

/// The faults of many runs, each distinct line once.
class FaultsOfRuns {
 public:
  explicit FaultsOfRuns(const std::string& file) : faults_(file) {}

  /// Adds a fault of this file, in the value of `key`.
  void add(int line, const std::string& key, const std::string& what);
  /// Adds a fault "option: what" of the values of a run: in the value of the parameter `group` + option, or of
  /// `otherwise` where the file does not set that.
  void add(const results::Sweep& sweep, std::size_t run, const std::string& group, const std::string& otherwise,
           const InputError& fault);
  /// Adds a fault of a file that `line` names.
  void add(int line, const InputError& fault);
  void throw_if_any() const { faults_.throw_if_any(); }

 private:
  FaultList faults_;
  std::set<std::string> seen_;
};

/// What determines a platform before it is scaled.
struct PlatformSource {
  std::string name;  ///< the file, or the generator
  std::string devices;
  std::map<std::string, std::string> options;  ///< of the generator

  auto operator<=>(const PlatformSource&) const = default;
};

/// The runs of a sweep with all that they need, except platforms, which the process of each run loads.
class SweepRuns {
 public:
  SweepRuns(const SweepRuns&) = delete;
  SweepRuns& operator=(const SweepRuns&) = delete;
  virtual ~SweepRuns() = default;

  const results::Sweep& sweep() const { return sweep_; }
  /// The files that are read: sweep, platforms, devices files, and those of the runs.
  virtual std::vector<std::string> inputs() const;
  /// Everything that determines the result of a run, versions included, as JSON on one line.
  virtual std::string definition(std::size_t run) const = 0;

  /// The runs without a row in the database; with `failed`, also those whose row failed.
  std::vector<std::size_t> missing_in(const results::SweepStore& store, bool failed) const;
  /// The rows in the database, in the order of the runs.
  std::vector<results::SweepResult> results_in(const results::SweepStore& store) const;
  /// These rows by their runs, with what identifies them.
  virtual std::vector<results::SweepResult> results_of(std::map<std::size_t, results::SweepRow> rows) const = 0;

  /// Called for each run that has ended.
  using OnRow = std::function<void(const results::SweepRow&)>;
  /// Makes runs, each in a child process, `jobs` at a time. A run that fails or exceeds the limit has a failed row with
  /// the reason. When all runs share one platform, this process loads it. Can be called once per process.
  /// @throws Interrupted, and what `on_row` throws; both kill the children.
  void make(const std::vector<std::size_t>& runs, std::size_t jobs, Seconds row_time_limit, const OnRow& on_row) const;

 protected:
  explicit SweepRuns(results::Sweep sweep) : sweep_(std::move(sweep)) {}

  PlatformSource platform_source(std::size_t run) const;
  /// Makes a generated platform once, so that a wrong option is reported before anything runs; checks that a file
  /// exists.
  void check_platform(std::size_t run, FaultsOfRuns& faults);
  /// Loads each platform in a child process, since a process holds only one. A platform that SimGrid refuses gets the
  /// hash of its text.
  void hash_platform_files();
  const std::string& platform_hash(const PlatformSource& source) const { return platform_hashes_.at(source); }
  sim::Platform load_platform_of(const PlatformSource& source) const;
  /// Versions and the platform's hash.
  std::map<std::string, std::string> common_definition(std::size_t run) const;

  /// Makes a run in this process. `shared`: its platform, if it is loaded.
  virtual results::SweepRow row_of(std::size_t run, const std::optional<sim::Platform>& shared) const = 0;

 private:
  results::Sweep sweep_;
  std::map<PlatformSource, std::string> platform_hashes_;
  std::vector<std::string> platform_files_;  // of all platforms that are files
};

/// Reads the sweep file, every input that its runs need and the hash of every platform (in child processes), and makes
/// each generated platform once.
/// @throws InputError with every fault of the file and of its inputs. A platform that SimGrid refuses is not a fault
/// here: its runs fail.
std::unique_ptr<SweepRuns> read_sweep_runs(const std::string& file);

/// Members of a group of parameters as texts.
std::map<std::string, std::string> texts_of(const std::vector<DocumentNode::Member>& members);
bool is_file(const std::string& name);

}  // namespace isobar::cli
