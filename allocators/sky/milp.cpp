#include "allocators/sky/milp.hpp"

#include "allocators/memory_fit.hpp"
#include "allocators/search_clock.hpp"
#include "allocators/sky/even.hpp"
#include "allocators/sky/sky_dynamic.hpp"
#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"

#include <coin/CbcConfig.h>
#include <fmt/format.h>
#include <coin/CbcEventHandler.hpp>
#include <coin/CbcModel.hpp>
#include <coin/CbcSolver.hpp>
#include <coin/ClpEventHandler.hpp>
#include <coin/ClpSimplex.hpp>
#include <coin/OsiClpSolverInterface.hpp>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace isobar::allocators {

namespace {

constexpr Seconds published_time_limit(300);
constexpr double published_gap = 0.2;

/// Blocks SIGINT and SIGTERM while CBC runs, since CBC replaces the handler of SIGINT. They are delivered afterwards;
/// until then are_pending() reports them.
class BlockedSignals {
 public:
  BlockedSignals()
  {
    sigemptyset(&blocked_);
    sigaddset(&blocked_, SIGINT);
    sigaddset(&blocked_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &blocked_, &before_);
    sigaction(SIGINT, nullptr, &handler_);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals()
  {
    sigaction(SIGINT, &handler_, nullptr);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

  static bool are_pending()
  {
    sigset_t pending;
    sigpending(&pending);
    return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1;
  }

 private:
  sigset_t blocked_;
  sigset_t before_;
  struct sigaction handler_ = {};
};

bool must_stop(const SearchClock& clock)
{
  return clock.is_over() || BlockedSignals::are_pending();
}

/// Stops the tree search at the limits.
class StopTree : public CbcEventHandler {
 public:
  explicit StopTree(const SearchClock& clock) : clock_(&clock) {}
  CbcAction event(CbcEvent) override { return must_stop(*clock_) ? stop : noAction; }
  CbcEventHandler* clone() const override { return new StopTree(*this); }

 private:
  const SearchClock* clock_;
};

/// Stops a long linear program at the limits, above all that of the root.
class StopLinearProgram : public ClpEventHandler {
 public:
  explicit StopLinearProgram(const SearchClock& clock) : clock_(&clock) {}
  int event(Event which) override
  {
    constexpr int carry_on = -1;
    constexpr int stopped_by_user = 5;
    return which == endOfIteration && ++calls_ % 64 == 0 && must_stop(*clock_) ? stopped_by_user : carry_on;
  }
  ClpEventHandler* clone() const override { return new StopLinearProgram(*this); }

 private:
  const SearchClock* clock_;
  unsigned calls_ = 0;
};

/// The published program, scaled: q counts in units of all forward work on the fastest device.
class SkyProgram {
 public:
  explicit SkyProgram(const SkyInputs& inputs)
      : in_(inputs),
        devices_(static_cast<int>(inputs.slowness.size())),
        layers_(static_cast<int>(inputs.layer_memory.size()))
  {
    const double all = std::accumulate(in_.multiply_adds.begin(), in_.multiply_adds.end(), 0.0);
    for (const double each : in_.multiply_adds) work_.push_back(all > 0 ? each / all : 0);
    add_rows();
  }

  OsiClpSolverInterface solver() const
  {
    const auto columns = static_cast<std::size_t>(q() + 1);
    std::vector<double> lower(columns, 0);
    std::vector<double> upper(columns, layers_);
    std::vector<double> cost(columns, 0);
    std::fill_n(upper.begin(), x(devices_, 0), 1);
    upper.back() = COIN_DBL_MAX;
    cost.back() = 1;
    const CoinPackedMatrix matrix(false, rows_.data(), columns_.data(), elements_.data(),
                                  static_cast<CoinBigIndex>(elements_.size()));
    OsiClpSolverInterface solver;
    solver.messageHandler()->setLogLevel(0);
    solver.loadProblem(matrix, lower.data(), upper.data(), cost.data(), row_lower_.data(), row_upper_.data());
    solver.setIntParam(OsiNameDiscipline, 1);
    for (int column = 0; column <= q(); ++column) solver.setColName(column, name_of_column(column));
    for (int column = 0; column < x(devices_, 0); ++column) solver.setInteger(column);
    solver.setDblParam(OsiPrimalTolerance, 1e-9);
    return solver;
  }

  /// The even split; none when it breaks C1.
  std::vector<StagePlacement> even_split() const
  {
    auto stages = stages_of_counts(even_counts(work_.size(), in_.slowness.size()));
    for (const auto& [device, first, last] : stages) {
      double memory = in_.stage_memory;
      for (std::size_t j = first; j <= last; ++j) memory += in_.layer_memory[j];
      if (memory > memory_share * in_.device_memory[device]) return {};
    }
    return stages;
  }

  /// Values of all variables, by name.
  std::vector<std::pair<std::string, double>> values_of(const std::vector<StagePlacement>& stages) const
  {
    std::vector<double> values(static_cast<std::size_t>(q() + 1), 0);
    const auto at = [&](int column) -> double& { return values[static_cast<std::size_t>(column)]; };
    for (int i = 0; i < devices_; ++i) at(z(i)) = 1;  // an empty device: y - z <= -1
    for (const auto& [index, first, last] : stages) {
      const auto device = static_cast<int>(index);
      double load = 0;
      for (std::size_t j = first; j <= last; ++j) {
        at(x(device, static_cast<int>(j))) = 1;
        load += in_.slowness[index] * work_[j];
      }
      at(z(device)) = static_cast<double>(first);
      at(y(device)) = static_cast<double>(last);
      at(q()) = std::max(at(q()), load);
    }
    std::vector<std::pair<std::string, double>> named;
    for (int column = 0; column <= q(); ++column) named.emplace_back(name_of_column(column), at(column));
    return named;
  }

  /// The stages of a solution, in chain order, read from the binaries.
  std::vector<StagePlacement> stages_of(const double* values) const
  {
    std::vector<StagePlacement> stages;
    int placed = 0;
    for (int i = 0; i < devices_; ++i) {
      int first = layers_;
      int last = -1;
      int count = 0;
      for (int j = 0; j < layers_; ++j) {
        if (std::lround(values[x(i, j)]) != 1) continue;
        first = std::min(first, j);
        last = j;
        ++count;
      }
      if (count == 0) continue;
      ensure(last - first + 1 == count, "a device's layers in CBC's solution are contiguous");
      placed += count;
      stages.push_back({static_cast<std::size_t>(i), static_cast<std::size_t>(first), static_cast<std::size_t>(last)});
    }
    ensure(placed == layers_, "CBC's solution holds every layer once");
    std::sort(stages.begin(), stages.end(),
              [](const StagePlacement& a, const StagePlacement& b) { return a.first_layer < b.first_layer; });
    return stages;
  }

 private:
  /// The solver keeps rows only to 1e-9; using no more than this share ensures that a plan never exceeds the memory.
  static constexpr double memory_share = 1 - 1e-8;

  int x(int device, int layer) const { return device * layers_ + layer; }
  int z(int device) const { return devices_ * layers_ + device; }
  int y(int device) const { return devices_ * layers_ + devices_ + device; }
  int q() const { return devices_ * layers_ + 2 * devices_; }
  static std::string name_of_column(int column) { return fmt::format("v{}", column); }

  void begin_row(double lower, double upper)
  {
    row_lower_.push_back(lower);
    row_upper_.push_back(upper);
  }
  void add(int column, double element)
  {
    rows_.push_back(static_cast<int>(row_lower_.size()) - 1);
    columns_.push_back(column);
    elements_.push_back(element);
  }

  void add_rows()
  {
    const double none = COIN_DBL_MAX;
    for (int i = 0; i < devices_; ++i) {
      const auto device = static_cast<std::size_t>(i);
      begin_row(-none, std::max(0.0, memory_share - in_.stage_memory / in_.device_memory[device]));  // C1
      for (int j = 0; j < layers_; ++j) {
        add(x(i, j), in_.layer_memory[static_cast<std::size_t>(j)] / in_.device_memory[device]);
      }
      for (int j = 0; j < layers_; ++j) {
        begin_row(0, none);  // C2
        add(y(i), 1);
        if (j > 0) add(x(i, j), -j);
        begin_row(-none, layers_ + 1);  // C3
        add(z(i), 1);
        add(x(i, j), layers_ + 1 - j);
      }
      begin_row(-none, -1);  // C4
      add(y(i), 1);
      add(z(i), -1);
      for (int j = 0; j < layers_; ++j) add(x(i, j), -1);
      begin_row(0, none);  // C6
      add(q(), 1);
      for (int j = 0; j < layers_; ++j) add(x(i, j), -in_.slowness[device] * work_[static_cast<std::size_t>(j)]);
    }
    for (int j = 0; j < layers_; ++j) {
      begin_row(1, 1);  // C5
      for (int i = 0; i < devices_; ++i) add(x(i, j), 1);
    }
  }

  const SkyInputs& in_;
  int devices_;
  int layers_;
  std::vector<double> work_;  // of each layer, as part of all
  std::vector<int> rows_;
  std::vector<int> columns_;
  std::vector<double> elements_;
  std::vector<double> row_lower_;
  std::vector<double> row_upper_;
};

std::string infeasible_reason(const CostModel& cost, const Goal& goal, const SkyInputs& inputs)
{
  if (auto layer = oversized_layer(cost, goal)) return *layer;
  const auto& devices = cost.cluster().devices;
  const auto largest = std::max_element(devices.begin(), devices.end(),
                                        [](const Device& a, const Device& b) { return a.memory < b.memory; });
  const Bytes need(std::accumulate(inputs.layer_memory.begin(), inputs.layer_memory.end(), inputs.stage_memory));
  const Bytes has(std::accumulate(inputs.device_memory.begin(), inputs.device_memory.end(), 0.0));
  return fmt::format(
      "{} and the {} devices have {} in all: CBC proves that no order of them holds contiguous parts; {} more memory "
      "on device {} would be enough",
      need_text(0, cost.layers() - 1, need), devices.size(), text_of(has), text_of(need - largest->memory),
      largest->name);
}

}  // namespace

std::string cbc_version()
{
  return CBC_VERSION;
}

Placement place_by_sky_milp(const Problem& problem)
{
  const SearchLimits limits = limited_to(published_time_limit, problem.limits);
  const SearchClock clock(limits);
  const SkyInputs inputs = sky_inputs(problem.cost, problem.goal);
  const SkyProgram program(inputs);
  OsiClpSolverInterface solver = program.solver();
  const StopLinearProgram stop_linear_program(clock);
  solver.getModelPtr()->passInEventHandler(&stop_linear_program);
  CbcModel model(solver);
  const StopTree stop_tree(clock);
  model.passInEventHandler(&stop_tree);
  model.setRandomSeed(static_cast<int>(limits.seed % 1'000'000'000));
  const auto start = program.even_split();
  if (!start.empty()) model.setMIPStart(program.values_of(start));

  std::vector<std::string> words = {"isobar", "-log", "0", "-ratio", fmt::format("{}", published_gap)};
  if (limits.time_limit) words.insert(words.end(), {"-seconds", fmt::format("{:.6f}", limits.time_limit->value)});
  if (limits.budget)
    words.insert(words.end(), {"-maxNodes", fmt::format("{}", std::min<std::uint64_t>(*limits.budget, 2'000'000'000))});
  words.insert(words.end(), {"-solve", "-quit"});
  std::vector<const char*> arguments;
  for (const auto& word : words) arguments.push_back(word.c_str());
  {
    const BlockedSignals blocked;
    CbcSolverUsefulData data;
    data.noPrinting_ = true;
    CbcMain0(model, data);
    CbcMain1(
        static_cast<int>(arguments.size()), arguments.data(), model, [](CbcModel*, int) { return 0; }, data);
  }

  Placement placement;
  const bool is_complete = model.status() == 0 && !clock.is_over();
  if (model.bestSolution() != nullptr) {
    placement.stages = program.stages_of(model.bestSolution());
    placement.outcome = is_complete ? Outcome::Feasible : Outcome::TimedOut;
  } else if (!start.empty()) {  // stopped before CBC looked at it
    placement.stages = start;
    placement.outcome = Outcome::TimedOut;
  } else if (model.isProvenInfeasible() && is_complete) {
    placement.outcome = Outcome::Infeasible;
    placement.reason = infeasible_reason(problem.cost, problem.goal, inputs);
  } else {
    placement.outcome = Outcome::TimedOut;
    placement.reason = "CBC found no plan within the limits; raise --time-limit or --budget, or use allocator chain-dp";
  }
  return placement;
}

}  // namespace isobar::allocators
