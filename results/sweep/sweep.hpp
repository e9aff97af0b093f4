#pragma once

#include "core/text/document.hpp"
#include "results/sweep/run_kind.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace isobar::results {

/// A parameter of a sweep and its values, as written in the sweep file.
struct SweepParameter {
  std::string name;                  ///< such as "allocator", "platform.nodes", "workload.encoders", "scale.bandwidth"
  std::vector<DocumentNode> values;  ///< numbers or texts; at least one
};

/// Names that a sweep file may use and that are defined outside of results.
struct SweepVocabulary {
  std::vector<std::string> generators;
  std::function<std::vector<std::string>(const std::string& generator)> options_of_generator;
  /// @throws InputError for an unknown allocator.
  std::function<void(const std::string& allocator)> require_allocator;
  /// @throws InputError for an unknown schedule, or numbers that it does not take.
  std::function<void(const std::string& schedule)> require_schedule;
};

/// The runs of a sweep file (docs/sweeps.md): the product of the values of its parameters; zipped parameters vary
/// together. The first parameter varies slowest, the seed fastest.
class Sweep {
 public:
  /// Reads a sweep file. @throws InputError "name:line: key: …" for every fault of the file.
  static Sweep from_text(const std::string& text, const std::string& name, const SweepVocabulary& vocabulary);

  const std::string& file() const { return file_; }
  /// Schedules of jobs if the file names a trace, else plans.
  const RunKind& kind() const { return *kind_; }
  bool schedules_jobs() const { return kind_ == &scheduled_runs(); }
  std::size_t runs() const { return runs_; }
  /// Slowest first.
  const std::vector<SweepParameter>& parameters() const { return parameters_; }
  bool has_parameter(const std::string& name) const;
  /// Index of the value that a parameter has in a run.
  std::size_t value_index(std::size_t run, std::size_t parameter) const;
  /// The value of a parameter in a run, or null where the file does not set the parameter.
  const DocumentNode* value(std::size_t run, const std::string& parameter) const;
  /// As `value`, as text; "" where the file does not set the parameter.
  std::string text(std::size_t run, const std::string& parameter) const;
  /// Parameters of a group such as "workload": their names without the group, and their values in a run.
  std::vector<DocumentNode::Member> members(std::size_t run, const std::string& group) const;

  /// Whether platforms are generated: then parameter "platform" names a generator instead of a file.
  bool generates_platforms() const { return generates_platforms_; }
  /// By default 1; of models drawn for jobs 0, as in `isobar cluster`.
  std::uint64_t seed(std::size_t run) const;
  std::optional<std::uint64_t> budget(std::size_t run) const;

 private:
  friend class SweepReader;

  std::string file_;
  const RunKind* kind_ = &planned_runs();
  std::vector<SweepParameter> parameters_;
  std::vector<std::size_t> strides_;  // by parameter: runs until its value changes; equal for zipped ones
  std::map<std::string, std::uint64_t> budget_of_allocator_;
  std::size_t runs_ = 1;
  bool generates_platforms_ = false;
};

/// Whether a value of a sweep is written as a finite number.
bool is_number(const DocumentNode& value);

}  // namespace isobar::results
