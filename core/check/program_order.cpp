#include "core/check/program_tasks.hpp"
#include "core/check/program_tiers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace isobar::program_check {

namespace {

constexpr double tolerance = 1e-9;

/// For each lane of a rank, how many of its instructions are known to be complete.
using Clock = std::vector<std::uint32_t>;
static_assert(most_checked_instructions <= std::numeric_limits<Clock::value_type>::max());

void raise_to(Clock& clock, const Clock::value_type* other)
{
  for (auto& count : clock) count = std::max(count, *other++);
}

/// What is known when a lane begins and completes its instructions, from its order and the waits of its rank.
class LaneClocks {
 public:
  /// The clocks of a lane of a rank with `lanes` lanes. Keeps that of every completed instruction if others wait for
  /// it.
  LaneClocks(std::size_t lanes, LaneId lane, bool is_awaited)
      : begun_(lanes, 0), completed_(lanes, 0), lane_(lane), is_awaited_(is_awaited)
  {
  }

  const Clock& begun() const { return begun_; }

  /// Begins an instruction. A transfer may begin while those before it in its lane are on their way.
  void begin(const Turn& turn, const std::vector<LaneClocks>& of_rank)
  {
    if (!is_transfer(turn.instruction.opcode)) raise_to(begun_, completed_.data());
    for (const Wait& wait : turn.instruction.waits) {
      if (wait.periods_back == 0) raise_to(begun_, of_rank[wait.lane].kept(wait.count - 1));
    }
  }
  /// How many of its instructions the lane has completed.
  std::uint32_t count() const { return completed_[lane_]; }
  void complete()
  {
    raise_to(completed_, begun_.data());
    ++completed_[lane_];
    if (is_awaited_) kept_.insert(kept_.end(), completed_.begin(), completed_.end());
  }

 private:
  const Clock::value_type* kept(std::uint64_t position) const { return &kept_[position * completed_.size()]; }

  Clock begun_;
  Clock completed_;
  LaneId lane_;
  bool is_awaited_;
  std::vector<Clock::value_type> kept_;  // one clock after another
};

struct MemoryState {
  double held = 0;  // since the begin
  double acquired = 0;
  bool is_faulty = false;
};

class OrderChecker : public WalkVisitor {
 public:
  OrderChecker(const Program& program, const Tasks& tasks) : program_(program), tasks_(tasks)
  {
    has_facts_ = std::any_of(tasks.facts.begin(), tasks.facts.end(), [](const auto& facts) { return !facts.empty(); });
    for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
      const std::size_t lanes = program.lanes(rank).size();
      auto& clocks = clocks_.emplace_back();
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        clocks.emplace_back(lanes, static_cast<LaneId>(lane), tasks.is_awaited[rank][lane]);
      }
    }
    memory_.resize(program.ranks());
    tiers_.resize(program.ranks());
    for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
      const auto& lanes = program.lanes(rank);
      const bool uses_machine = std::any_of(lanes.begin(), lanes.end(), [](const Lane& lane) {
        return lane.engine != Engine::Device && lane.engine != Engine::Network;
      });
      if (uses_machine) tiers_[rank].emplace(program, rank);
    }
  }

  void execute(const Turn& turn) override
  {
    begin(turn);
    complete(turn);
  }

  bool meet(std::size_t, std::span<const Turn* const> turns) override
  {
    for (const Turn* turn : turns) begin(*turn);
    for (const Turn* turn : turns) complete(*turn);
    return true;
  }

  /// The faults of the walk, which has ended.
  std::vector<std::string> faults()
  {
    for (std::size_t rank = 0; rank < memory_.size(); ++rank) {
      for (std::size_t tier = 0; tier < tier_count; ++tier) {
        const MemoryState& state = memory_[rank][tier];
        if (state.is_faulty || state.held <= tolerance * state.acquired) continue;
        faults_.add([&] {
          return fmt::format(
              "rank {}: {} memory ends {} B above where it began; a period releases all that it acquires", rank,
              name_of(static_cast<Tier>(tier)), state.held);
        });
      }
    }
    for (const auto& rank : tiers_) {
      if (rank) rank->add_faults(faults_);
    }
    return faults_.lines();
  }

 private:
  void begin(const Turn& turn)
  {
    LaneClocks& clocks = clocks_[turn.at.rank][turn.at.lane];
    clocks.begin(turn, clocks_[turn.at.rank]);
    check_needs(turn, clocks.begun());
    if (tiers_[turn.at.rank]) tiers_[turn.at.rank]->note(turn, clocks.begun());
    change_memory(turn, turn.instruction.acquires, 1);
  }
  void complete(const Turn& turn)
  {
    clocks_[turn.at.rank][turn.at.lane].complete();
    change_memory(turn, turn.instruction.releases, -1);
  }

  void check_needs(const Turn& turn, const Clock& begun)
  {
    const Instruction& instruction = turn.instruction;
    switch (instruction.opcode) {
      case Opcode::Forward:
      case Opcode::Backward:
      case Opcode::BackwardInput:
      case Opcode::BackwardWeight:
        return check_task(turn, begun);
      case Opcode::Update:
        return check_update(turn, begun);
      case Opcode::Store:
        if (instruction.payload != Payload::ParameterGradient) return;
        return check_counts(turn, begun, holding_of(turn).syncs, "sync of its gradients");
      case Opcode::Send:
        return check_send(turn, begun);
      default:
        if (is_collective(instruction.opcode)) check_sync(turn, begun);
    }
  }

  void check_task(const Turn& turn, const Clock& begun)
  {
    const Instruction& instruction = turn.instruction;
    const std::size_t rank = turn.at.rank;
    const Passage& passage = *tasks_.find_passage(instruction.stage, instruction.microbatch, rank);
    const auto needs = [&](const Spot& spot, const char* what) { check_need(turn, begun, spot, what); };
    for (const auto& collective : tasks_.collectives_of(passage)) {
      const auto kinds = kinds_beside(collective);
      const bool is_beside = std::find(kinds.begin(), kinds.end(), instruction.opcode) != kinds.end();
      if (is_beside) check_order(turn, begun, collective.spot, "collective in its grid");
    }
    if (instruction.opcode == Opcode::Forward) {
      check_gathered(turn);
      check_input(turn, begun, passage);
      return;
    }
    if (instruction.opcode != Opcode::BackwardWeight) check_gathered(turn);
    needs(passage.spot(Kind::Forward), "Forward");
    const bool is_last = tasks_.find_passage(instruction.stage + 1, instruction.microbatch) == nullptr;
    const auto scales_later = program_.sums_loss_with_gradients() ? Opcode::BackwardInput : Opcode::BackwardWeight;
    if (is_last && instruction.opcode != scales_later)
      needs(passage.spot(Kind::ActivationSum), "collective of its activations");
    if (instruction.opcode == Opcode::BackwardWeight) return needs(passage.spot(Kind::BackwardInput), "BackwardInput");
    check_gradient(turn, begun, passage);
  }

  /// Checks that the turn comes after what brings the input of a passage.
  void check_input(const Turn& turn, const Clock& begun, const Passage& passage)
  {
    check_received(turn, begun, passage, Kind::ActivationRecv);
    if (passage.stage == 0) return;
    const auto* before = tasks_.find_passage(passage.stage - 1, passage.microbatch, passage.rank);
    if (before == nullptr) return;
    check_need(turn, begun, before->spot(Kind::Forward), "Forward of the stage before");
    check_need(turn, begun, before->spot(Kind::ActivationSum), "collective of activations of the stage before");
    check_added(turn, begun, *before, Payload::Activation, "collective of activations of the stage before");
  }

  void check_received(const Turn& turn, const Clock& begun, const Passage& passage, Kind kind)
  {
    check_need(turn, begun, passage.spot(kind), "Recv");
    for (const Spot& spot : tasks_.more_receives_of(passage, kind)) check_need(turn, begun, spot, "Recv");
  }

  /// Checks that the turn comes after what brings the gradient of a passage's output.
  void check_gradient(const Turn& turn, const Clock& begun, const Passage& passage)
  {
    check_received(turn, begun, passage, Kind::GradientRecv);
    const auto* after = tasks_.find_passage(passage.stage + 1, passage.microbatch, passage.rank);
    if (after == nullptr) return;
    check_need(turn, begun, after->input_backward(), "backward of the stage after");
    check_need(turn, begun, after->spot(Kind::GradientSum), "collective of gradients of the stage after");
    check_added(turn, begun, *after, Payload::Gradient, "collective of gradients of the stage after");
  }

  /// Checks that the turn comes after the collectives in a grid that add up what a passage makes.
  void check_added(const Turn& turn, const Clock& begun, const Passage& passage, Payload payload, const char* what)
  {
    for (const auto& collective : tasks_.collectives_of(passage)) {
      // One of activations that adds up before the Forward is known by it.
      if (collective.payload == payload && collective.adds()) check_need(turn, begun, collective.spot, what);
    }
  }

  /// The tasks of a passage that do not run beside a collective in its grid: they make or need what it carries.
  static std::vector<Opcode> kinds_beside(const GridCollective& collective)
  {
    switch (collective.payload) {
      case Payload::Activation:
        if (collective.adds()) return {Opcode::Forward};
        return {Opcode::Forward, Opcode::Backward, Opcode::BackwardWeight};
      case Payload::Parameter:
        return {Opcode::Forward, Opcode::Backward, Opcode::BackwardInput};
      case Payload::ParameterGradient:
        return {Opcode::Backward, Opcode::BackwardWeight};
      default:
        return {Opcode::Backward, Opcode::BackwardInput};
    }
  }

  void check_grid_collective(const Turn& turn, const Clock& begun, const Passage& passage)
  {
    const auto& collectives = tasks_.collectives_of(passage);
    const auto own = std::find_if(collectives.begin(), collectives.end(), [&](const GridCollective& each) {
      return each.spot.lane == turn.at.lane && each.spot.position == turn.position;
    });
    for (const Opcode opcode : kinds_beside(*own)) {
      check_order(turn, begun, passage.spots[static_cast<std::size_t>(opcode)], "pass");
    }
    const auto is_before = [&](const Spot& pass) { return pass.is_set() && begun[pass.lane] <= pass.position; };
    if (own->payload == Payload::Activation && is_before(passage.spot(Kind::Forward))) {
      check_input(turn, begun, passage);
    }
    const Holding& holding = holding_of(turn);
    if (own->payload == Payload::Parameter && holding.update.is_set()) check_follows_update(turn, begun, holding);
    if (own->payload == Payload::Gradient && is_before(passage.input_backward())) check_gradient(turn, begun, passage);
    if (own->payload == Payload::ParameterGradient) {
      const bool is_whole = passage.spot(Kind::Backward).is_set();
      check_need(turn, begun, passage.spot(is_whole ? Kind::Backward : Kind::BackwardWeight), "backward");
    }
  }

  /// Checks that the turn begins after the instruction at `spot`, if that has come first.
  void check_order(const Turn& turn, const Clock& begun, const Spot& spot, const char* what)
  {
    if (spot.is_set() && clocks_[turn.at.rank][spot.lane].count() > spot.position) {
      check_need(turn, begun, spot, what);
    }
  }

  void check_send(const Turn& turn, const Clock& begun)
  {
    const Instruction& instruction = turn.instruction;
    const Passage* passage = tasks_.find_passage(instruction.stage, instruction.microbatch, turn.at.rank);
    if (passage == nullptr) return;
    if (instruction.payload == Payload::Activation) {
      check_need(turn, begun, passage->spot(Kind::Forward), "Forward");
      check_need(turn, begun, passage->spot(Kind::ActivationSum), "collective of its activations");
      check_added(turn, begun, *passage, Payload::Activation, "collective of its activations");
    }
    if (instruction.payload == Payload::Gradient) {
      check_need(turn, begun, passage->input_backward(), "backward");
      check_need(turn, begun, passage->spot(Kind::GradientSum), "collective of its gradients");
      check_added(turn, begun, *passage, Payload::Gradient, "collective of its gradients");
    }
  }

  void check_update(const Turn& turn, const Clock& begun)
  {
    const Holding& holding = *tasks_.find_holding(turn.instruction.stage, static_cast<std::uint32_t>(turn.at.rank));
    if (program_.lanes(turn.at.rank)[turn.at.lane].engine == Engine::Host) return;  // TierOrder checks it
    check_counts(turn, begun, holding.backwards, "last backward");
    check_counts(turn, begun, holding.syncs, "sync of its gradients");
    check_counts(turn, begun, holding.ties, "sum of its tied gradients");
    const LaneCounts& facts = tasks_.facts[turn.at.rank];
    check_counts(turn, begun, facts, "sync of gradient facts");
    if (has_facts_ && facts.empty()) {
      faults_.add([&] {
        return fmt::format("{} has no part in the sync of gradient facts, which other ranks have", text_of(turn));
      });
    }
  }

  void check_sync(const Turn& turn, const Clock& begun)
  {
    const Instruction& instruction = turn.instruction;
    const auto rank = static_cast<std::uint32_t>(turn.at.rank);
    const Passage* const passage = tasks_.find_passage(instruction.stage, instruction.microbatch, rank);
    if (passage != nullptr && is_of_grid(turn, *passage)) return check_grid_collective(turn, begun, *passage);
    if (instruction.payload == Payload::ParameterGradient) {
      const Holding& own = holding_of(turn);
      const bool is_of_microbatch = instruction.opcode == Opcode::ReduceScatter &&
                                    std::any_of(own.syncs.begin(), own.syncs.end(), [&](const LaneCounts::Count& last) {
                                      return last.lane == turn.at.lane && turn.position + 1 < last.count;
                                    });
      if (is_of_microbatch) return check_microbatch_sync(turn, begun, passage);
      const auto check_complete = [&](const Holding& holding) {
        check_counts(turn, begun, holding.backwards, "last backward");
        check_counts(turn, begun, holding.block_sums, "last collective of gradients in its grid");
      };
      check_complete(own);
      const auto besides = tasks_.stages_besides.find({rank, turn.at.lane, turn.position});
      if (besides != tasks_.stages_besides.end()) {
        for (const std::uint32_t stage : besides->second) check_complete(*tasks_.find_holding(stage, rank));
      }
    }
    if (instruction.payload == Payload::TiedGradient) {
      check_counts(turn, begun, holding_of(turn).backwards, "last backward");
      check_counts(turn, begun, holding_of(turn).syncs, "sync of its gradients");
    }
    if (instruction.payload == Payload::GradientFacts) {
      check_counts(turn, begun, tasks_.backwards[rank], "last backward");
      check_counts(turn, begun, tasks_.ties[rank], "sum of its tied gradients");
    }
    if (instruction.payload == Payload::Parameter) check_gather(turn, begun);
    if (instruction.payload != Payload::Activation && instruction.payload != Payload::Gradient) return;
    if (passage == nullptr) return;
    const bool is_of_outputs = instruction.payload == Payload::Activation;
    check_need(turn, begun, is_of_outputs ? passage->spot(Kind::Forward) : passage->input_backward(),
               is_of_outputs ? "Forward" : "backward");
    if (is_of_outputs || !program_.sums_loss_with_gradients()) return;
    const bool is_last = tasks_.find_passage(instruction.stage + 1, instruction.microbatch) == nullptr;
    if (is_last) check_need(turn, begun, passage->spot(Kind::ActivationSum), "collective of its activations");
  }

  /// Checks that a sum of the gradients of one micro-batch, before the last of the step, comes after these.
  void check_microbatch_sync(const Turn& turn, const Clock& begun, const Passage* passage)
  {
    if (passage == nullptr) {
      faults_.add([&] {
        return fmt::format("{} is before the last of the step, and its rank has no micro-batch {} in the stage",
                           text_of(turn), turn.instruction.microbatch);
      });
      return;
    }
    const bool is_whole = passage->spot(Kind::Backward).is_set();
    check_need(turn, begun, passage->spot(is_whole ? Kind::Backward : Kind::BackwardWeight), "backward");
  }

  bool is_of_grid(const Turn& turn, const Passage& passage) const
  {
    const auto& collectives = tasks_.collectives_of(passage);
    return std::any_of(collectives.begin(), collectives.end(), [&](const GridCollective& each) {
      return each.spot.lane == turn.at.lane && each.spot.position == turn.position;
    });
  }

  /// Checks that a gather of parameters comes after their Update: of its period, if forwards wait for it a period
  /// later, or else of the period before.
  void check_gather(const Turn& turn, const Clock& begun)
  {
    const Holding& holding = holding_of(turn);
    if (!holding.update.is_set()) return;
    if (is_gathered_a_period_before(holding)) return check_need(turn, begun, holding.update, "Update");
    check_follows_update(turn, begun, holding);
  }

  /// Checks that the turn comes after the Update of the period before.
  void check_follows_update(const Turn& turn, const Clock& begun, const Holding& holding)
  {
    // What has begun in the lane of the Update follows the one of the period before.
    const Waits& waits = turn.instruction.waits;
    const bool waits_for_it = std::any_of(waits.begin(), waits.end(), [&](const Wait& wait) {
      return wait.lane == holding.update.lane && wait.periods_back == 1 && wait.count > holding.update.position;
    });
    if (!waits_for_it && begun[holding.update.lane] == 0) add_need(turn, holding.update, "Update of the period before");
  }

  /// Checks that a pass waits for a gather of its parameters: a forward for one of this period or of the one before, a
  /// backward for one of this period, unless its forward waited for one of the period before.
  void check_gathered(const Turn& turn)
  {
    const Instruction& instruction = turn.instruction;
    const Holding& holding = holding_of(turn);
    if (holding.gathers.empty()) return;
    const auto waits_for_gather = [&](const Wait& wait) {
      return std::any_of(holding.gathers.begin(), holding.gathers.end(), [&](const auto& gather) {
        return wait.lane == gather.lane && (wait.periods_back == 0 || wait.count >= gather.count);
      });
    };
    const auto& waits = instruction.waits;
    const Wait* const found = std::find_if(waits.begin(), waits.end(), waits_for_gather);
    const bool is_forward = instruction.opcode == Opcode::Forward;
    if (found != waits.end()) {
      if (is_forward && found->periods_back > 0) gathered_before_.insert(&holding);
    } else if (is_forward || !is_gathered_a_period_before(holding)) {
      faults_.add([&] { return fmt::format("{} does not wait for a gather of its parameters", text_of(turn)); });
    }
  }

  const Holding& holding_of(const Turn& turn) const
  {
    static const Holding none;
    const Holding* const found = tasks_.find_holding(turn.instruction.stage, static_cast<std::uint32_t>(turn.at.rank));
    return found == nullptr ? none : *found;
  }

  bool is_gathered_a_period_before(const Holding& holding) const { return gathered_before_.contains(&holding); }

  /// Checks that the turn begins after the instruction at `spot`, if its rank has that.
  void check_need(const Turn& turn, const Clock& begun, const Spot& spot, const char* what)
  {
    if (spot.is_set() && spot.rank == turn.at.rank && begun[spot.lane] <= spot.position) add_need(turn, spot, what);
  }
  void check_counts(const Turn& turn, const Clock& begun, const LaneCounts& counts, const char* what)
  {
    for (const auto& [lane, count] : counts) {
      if (begun[lane] < count) add_need(turn, {static_cast<std::uint32_t>(turn.at.rank), lane, count - 1}, what);
    }
  }
  void add_need(const Turn& turn, const Spot& spot, const char* what)
  {
    faults_.add([&] {
      return fmt::format("{} does not wait for the {} at {}", text_of(turn), what,
                         program_check::text_of(program_, spot));
    });
  }

  /// "rank 0, lane compute, position 3: Backward of micro-batch 1 in stage 0".
  std::string text_of(const Turn& turn) const
  {
    const Instruction& instruction = turn.instruction;
    std::string text = place_text(turn.at.rank, program_.lanes(turn.at.rank)[turn.at.lane], turn.position);
    text += fmt::format(": {}", name_of(instruction.opcode));
    if (!is_computation(instruction.opcode)) text += fmt::format(" of {}", name_of(instruction.payload));
    const bool has_microbatch = instruction.opcode != Opcode::Update && !is_collective(instruction.opcode);
    if (has_microbatch) text += fmt::format(" of micro-batch {}", instruction.microbatch);
    return text + fmt::format(" in stage {}", instruction.stage);
  }

  void change_memory(const Turn& turn, const Hold& hold, double sign)
  {
    if (hold.size.value <= 0) return;
    MemoryState& state = memory_[turn.at.rank][static_cast<std::size_t>(hold.tier)];
    state.held += sign * hold.size.value;
    if (sign > 0) state.acquired += hold.size.value;
    if (state.is_faulty || state.held >= -tolerance * state.acquired) return;
    state.is_faulty = true;
    faults_.add([&] {
      return fmt::format("{} releases more {} memory than its rank has acquired", text_of(turn), name_of(hold.tier));
    });
  }

  const Program& program_;
  const Tasks& tasks_;
  bool has_facts_ = false;
  std::vector<std::vector<LaneClocks>> clocks_;  // by rank and lane
  std::vector<std::array<MemoryState, tier_count>> memory_;
  std::vector<std::optional<TierOrder>> tiers_;  // by rank; of those that use their machine
  std::set<const Holding*> gathered_before_;     // whose forwards wait for a gather of the period before
  ProgramFaults faults_;
};

}  // namespace

std::vector<std::string> order_faults(const Program& program, const Tasks& tasks)
{
  OrderChecker checker(program, tasks);
  ProgramWalk walk(program);
  if (auto deadlock = walk.run(1, checker)) return {std::move(*deadlock)};
  return checker.faults();
}

}  // namespace isobar::program_check
