#include "core/check/program_tasks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace isobar::program_check {

namespace {

/// Checks that every stage has all that it needs for every micro-batch, and an update.
class TaskChecker {
 public:
  TaskChecker(const Program& program, ProgramUse use, const Tasks& tasks, ProgramFaults& faults)
      : program_(program), use_(use), tasks_(tasks), faults_(faults)
  {
  }

  void check()
  {
    check_forwards();
    if (!faults_.empty()) return;
    for (const auto& passage : tasks_.passages) check_passage(passage);
    if (use_ == ProgramUse::Evaluation) return;
    std::map<std::uint32_t, std::vector<const Holding*>> holdings_of_stage;
    for (const auto& holding : tasks_.holdings) {
      check_update(holding);
      holdings_of_stage[holding.stage].push_back(&holding);
    }
    check_ties();
    for (const auto& [stage, holdings] : holdings_of_stage) {
      // Ranks of a grid have gradients of other parameters each.
      if (!tasks_.grid_of[holdings.front()->rank] && program_.shares_parameters(stage)) {
        check_meet(
            stage, holdings, &Holding::channels, [](const Holding& holding) { return !holding.backwards.empty(); },
            "its parameter gradients");
      }
      check_groups_meet(stage, holdings);
      std::map<std::size_t, std::vector<const Holding*>> scattered;  // by the channel that leaves each with a part
      for (const Holding* holding : holdings) {
        for (const std::size_t channel : holding->scatters) scattered[channel].push_back(holding);
      }
      for (const auto& [channel, parts] : scattered) {
        check_meet(
            stage, parts, &Holding::gather_channels, [](const Holding&) { return true; },
            "the parameters that ranks update in parts");
      }
    }
  }

 private:
  void add(const Spot& spot, const std::string& what)
  {
    faults_.add([&] { return fmt::format("{}: {}", text_of(program_, spot), what); });
  }

  /// Stages 0, 1, … have forwards of the same micro-batches 0, 1, …
  void check_forwards()
  {
    std::map<std::uint32_t, std::uint64_t> forwards;  // of each stage
    std::uint64_t largest = 0;
    for (const auto& passage : tasks_.passages) {
      if (!passage.spot(Kind::Forward).is_set()) continue;
      // Of several ranks that compute it, the one with the first.
      if (first_forward(passage.stage, passage.microbatch) == &passage) ++forwards[passage.stage];
      largest = std::max(largest, passage.microbatch);
    }
    stages_ = forwards.size();
    if (forwards.empty()) faults_.add([] { return "program: no Forward; it has one for every micro-batch"; });
    std::uint32_t next = 0;
    for (const auto& [stage, count] : forwards) {
      const std::uint32_t missing_stage = next;
      if (stage != missing_stage) {
        faults_.add([&] {
          return fmt::format("stage {}: no Forward; stages are numbered from 0 without gaps", missing_stage);
        });
        return;
      }
      ++next;
      if (count > largest) continue;
      std::uint64_t microbatch = 0;
      while (has_forward(stage, microbatch)) ++microbatch;
      const std::uint32_t incomplete = stage;
      faults_.add([&] { return fmt::format("stage {}: no Forward of micro-batch {}", incomplete, microbatch); });
    }
  }

  bool has_forward(std::uint32_t stage, std::uint64_t microbatch) const
  {
    return first_forward(stage, microbatch) != nullptr;
  }

  /// The first passage of a micro-batch through a stage with a forward; null without one.
  const Passage* first_forward(std::uint32_t stage, std::uint64_t microbatch) const
  {
    const Passage* passage = tasks_.find_passage(stage, microbatch);
    while (passage != nullptr && !passage->spot(Kind::Forward).is_set()) passage = tasks_.next(*passage);
    return passage;
  }

  void add_second_forward(const Passage& passage, const Passage& first)
  {
    faults_.add([&] {
      return fmt::format("{}: a second Forward for micro-batch {} of stage {}; the first is at {}",
                         text_of(program_, passage.spot(Kind::Forward)), passage.microbatch, passage.stage,
                         text_of(program_, first.spot(Kind::Forward)));
    });
  }

  /// Checks that the ranks of a grid compute a micro-batch together.
  void check_grid(const Passage& passage, std::size_t grid)
  {
    const Passage* const first = first_forward(passage.stage, passage.microbatch);
    if (tasks_.grid_of[first->rank] != grid) return add_second_forward(passage, *first);
    for (const std::size_t rank : program_.grids()[grid]) {
      const Passage* const other = tasks_.find_passage(passage.stage, passage.microbatch, rank);
      if (other != nullptr && other->spot(Kind::Forward).is_set()) continue;
      return add(passage.spot(Kind::Forward), fmt::format("rank {} of its grid has none of micro-batch {} in stage {}",
                                                          rank, passage.microbatch, passage.stage));
    }
    for (const Kind kind : {Kind::ActivationSum, Kind::GradientSum}) {
      if (passage.spot(kind).is_set()) add(passage.spot(kind), "a collective with ranks outside of its grid");
    }
  }

  /// Checks that ranks which compute the same together make their results whole: all ends of a channel and no others.
  void check_meetings(const Passage& passage)
  {
    if (const auto& grid = tasks_.grid_of[passage.rank]) return check_grid(passage, *grid);
    const Passage* const first = first_forward(passage.stage, passage.microbatch);
    const auto found = tasks_.meetings.find(passage.stage);
    if (found == tasks_.meetings.end()) {
      if (first != &passage) add_second_forward(passage, *first);
      return;
    }
    std::size_t ranks = 0;
    for (const Passage* each = first; each != nullptr; each = tasks_.next(*each)) ++ranks;
    const auto require = [&](Kind kind, const char* what) {
      const Spot& spot = passage.spot(kind);
      if (!spot.is_set() && ranks == 1) return;  // other ranks take other micro-batches together
      if (!spot.is_set()) return add(passage.spot(Kind::Forward), fmt::format("no collective of its {}", what));
      const auto& ends = program_.channels()[*program_.lanes(spot.rank)[spot.lane].channel].ends;
      const bool has_all = std::all_of(ends.begin(), ends.end(), [&](const End& end) {
        return tasks_.find_passage(passage.stage, passage.microbatch, end.rank) != nullptr;
      });
      if (has_all && ends.size() == ranks) return;
      add(spot, fmt::format("a collective of {} ranks, and {} compute micro-batch {} of stage {}", ends.size(), ranks,
                            passage.microbatch, passage.stage));
    };
    require(Kind::ActivationSum, "activations");
    if (use_ == ProgramUse::Training && passage.stage > 0) require(Kind::GradientSum, "gradients");
  }

  void check_passage(const Passage& passage)
  {
    const auto add_fault = [&](const Spot& spot, const std::string& what) {
      add(spot, fmt::format("micro-batch {} of stage {} {}", passage.microbatch, passage.stage, what));
    };
    const Spot& forward = passage.spot(Kind::Forward);
    for (std::size_t i = 0; i < kinds; ++i) {
      const Spot& spot = passage.spots[i];
      if (!spot.is_set()) continue;
      if (forward.is_set()) continue;
      const Passage* const other = first_forward(passage.stage, passage.microbatch);
      if (other == nullptr) return add_fault(spot, "has no Forward");
      return add_fault(spot, fmt::format("has its Forward on rank {}", other->rank));
    }
    check_meetings(passage);
    check_arrival(passage, Kind::ActivationRecv);
    if (use_ == ProgramUse::Evaluation) return;
    // What is on a rank without its forward is missing here; that has been said of it.
    const Passage* each = tasks_.find_passage(passage.stage, passage.microbatch);
    while (each != nullptr && each->spot(Kind::Forward).is_set()) each = tasks_.next(*each);
    if (each != nullptr) return;
    const Spot& whole = passage.spot(Kind::Backward);
    const Spot& input = passage.spot(Kind::BackwardInput);
    const Spot& weight = passage.spot(Kind::BackwardWeight);
    if (whole.is_set()) {
      if (input.is_set()) return add_fault(input, "has a Backward too");
      if (weight.is_set()) return add_fault(weight, "has a Backward too");
    } else {
      if (!input.is_set() && !weight.is_set()) return add_fault(forward, "has no Backward");
      if (!weight.is_set()) return add_fault(input, "has no BackwardWeight");
      if (!input.is_set()) return add_fault(weight, "has no BackwardInput");
    }
    check_arrival(passage, Kind::GradientRecv);
  }

  /// Whether a rank of the passage's grid receives something for it: others may need nothing.
  bool is_brought_to_grid(const Passage& passage, Kind recv) const
  {
    const auto& grid = tasks_.grid_of[passage.rank];
    if (!grid) return false;
    const auto& ranks = program_.grids()[*grid];
    return std::any_of(ranks.begin(), ranks.end(), [&](std::size_t rank) {
      const Passage* const other = tasks_.find_passage(passage.stage, passage.microbatch, rank);
      return other != nullptr && other->spot(recv).is_set();
    });
  }

  /// Checks that the stage receives what it needs from a neighbour, unless that is on the same rank.
  void check_arrival(const Passage& passage, Kind recv)
  {
    const bool is_activation = recv == Kind::ActivationRecv;
    const bool is_outermost = is_activation ? passage.stage == 0 : passage.stage + 1 == stages_;
    if (is_outermost || passage.spot(recv).is_set() || is_brought_to_grid(passage, recv)) return;
    const std::uint32_t neighbour = is_activation ? passage.stage - 1 : passage.stage + 1;
    const auto made_by = [&](const Passage* other) -> const Spot& {
      static const Spot none;
      if (other == nullptr) return none;
      return is_activation ? other->spot(Kind::Forward) : other->input_backward();
    };
    const Spot& needed = is_activation ? passage.spot(Kind::Forward) : passage.input_backward();
    if (made_by(tasks_.find_passage(neighbour, passage.microbatch, passage.rank)).is_set()) return;
    if (!made_by(tasks_.find_passage(neighbour, passage.microbatch)).is_set()) return;
    add(needed, fmt::format("no Recv brings the {} of micro-batch {} from stage {}",
                            is_activation ? "activation" : "gradient", passage.microbatch, neighbour));
  }

  void check_update(const Holding& holding)
  {
    if (holding.update.is_set() && holding.backwards.empty()) {
      add(holding.update, fmt::format("Update of stage {}, of which the rank has no backward", holding.stage));
    }
    if (!holding.update.is_set() && !holding.backwards.empty()) {
      faults_.add([&] {
        return fmt::format("rank {}: no Update of stage {}, of which it has backwards", holding.rank, holding.stage);
      });
    }
  }

  /// Checks that each rank of a stage that has a copy of a matrix adds up its gradients with a rank of each other one.
  void check_ties()
  {
    for (const auto& holding : tasks_.holdings) {
      bool has_copy = false;
      for (const auto& stages : program_.tied_stages()) {
        if (std::find(stages.begin(), stages.end(), holding.stage) == stages.end()) continue;
        has_copy = true;
        const std::set<std::uint32_t> all(stages.begin(), stages.end());
        const bool has_sum = std::any_of(holding.tie_channels.begin(), holding.tie_channels.end(),
                                         [&](std::size_t channel) { return tasks_.stages_of_tie.at(channel) == all; });
        if (has_sum || holding.backwards.empty()) continue;
        faults_.add([&] {
          return fmt::format("stage {}: no collective of tied gradients joins rank {} with one of each of stages {}",
                             holding.stage, holding.rank, fmt::join(all, ", "));
        });
      }
      if (has_copy || holding.tie_channels.empty()) continue;
      faults_.add([&] {
        return fmt::format("stage {}: rank {} adds up tied gradients, and no other stage has a copy of a matrix of it",
                           holding.stage, holding.rank);
      });
    }
  }

  /// Checks that the parameter gradients of each rank meet those of each other group of ranks that compute the stage
  /// together.
  void check_groups_meet(std::uint32_t stage, const std::vector<const Holding*>& holdings)
  {
    // Of a rank: its grid, or the first channel on which it meets others; one that meets none is a group.
    std::map<std::size_t, std::size_t> group_of;
    std::set<std::size_t> groups;
    if (const auto found = tasks_.meetings.find(stage); found != tasks_.meetings.end()) {
      for (const std::size_t channel : found->second) {
        for (const End& end : program_.channels()[channel].ends) {
          if (group_of.emplace(end.rank, channel).second) groups.insert(channel);
        }
      }
      for (const Holding* holding : holdings) {
        const std::size_t alone = program_.channels().size() + holding->rank;
        if (group_of.emplace(holding->rank, alone).second) groups.insert(alone);
      }
    } else {
      for (const Holding* holding : holdings) {
        const auto& grid = tasks_.grid_of[holding->rank];
        if (grid && group_of.emplace(holding->rank, *grid).second) groups.insert(*grid);
      }
    }
    if (groups.empty()) return;
    for (const Holding* holding : holdings) {
      std::set<std::size_t> reached = {group_of[holding->rank]};
      for (const std::size_t channel : holding->channels) {
        for (const End& end : program_.channels()[channel].ends) reached.insert(group_of[end.rank]);
      }
      if (holding->backwards.empty() || reached.size() >= groups.size()) continue;
      faults_.add([&] {
        return fmt::format("stage {}: no collective of its parameter gradients joins rank {} with each group of ranks",
                           stage, holding->rank);
      });
      return;
    }
  }

  /// Checks that collectives over these channels lead from each rank that takes part to all others.
  template <typename TakesPart>
  void check_meet(std::uint32_t stage, const std::vector<const Holding*>& holdings,
                  std::set<std::size_t> Holding::*channels_of, TakesPart takes_part, const char* what)
  {
    const auto first =
        std::find_if(holdings.begin(), holdings.end(), [&](const Holding* holding) { return takes_part(*holding); });
    if (first == holdings.end()) return;
    std::set<std::size_t> channels = (*first)->*channels_of;
    std::vector<bool> is_reached(holdings.size(), false);
    is_reached[static_cast<std::size_t>(first - holdings.begin())] = true;
    for (bool has_grown = true; has_grown;) {
      has_grown = false;
      for (std::size_t i = 0; i < holdings.size(); ++i) {
        const auto& own = holdings[i]->*channels_of;
        const auto is_shared = [&](std::size_t channel) { return channels.contains(channel); };
        if (is_reached[i] || std::none_of(own.begin(), own.end(), is_shared)) continue;
        is_reached[i] = has_grown = true;
        channels.insert(own.begin(), own.end());
      }
    }
    for (std::size_t i = 0; i < holdings.size(); ++i) {
      if (is_reached[i] || !takes_part(*holdings[i])) continue;
      faults_.add([&] {
        return fmt::format("stage {}: no collective of {} joins ranks {} and {}", stage, what, (*first)->rank,
                           holdings[i]->rank);
      });
      return;
    }
  }

  const Program& program_;
  ProgramUse use_;
  const Tasks& tasks_;
  ProgramFaults& faults_;
  std::size_t stages_ = 0;
};

}  // namespace

void add_task_faults(const Program& program, ProgramUse use, const Tasks& tasks, ProgramFaults& faults)
{
  TaskChecker(program, use, tasks, faults).check();
}

}  // namespace isobar::program_check
