#include "schedules/rounds/round_program.hpp"

#include "schedules/rounds/outer_work.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace isobar::schedules {

namespace {

/// A rank of a round.
struct RoundRank {
  std::size_t worker = 0;
  std::size_t rank = 0;  // of the worker's plan
  std::vector<Lane> lanes;
  std::size_t step_lanes = 0;                   // of its step: the first of `lanes`
  std::vector<std::vector<Instruction>> outer;  // by lane, of the others
  std::vector<Insert> inserts;                  // of the compute lane, by place
  std::array<Bytes, tier_count> resident{};
};

class RoundProgram : public Program {
 public:
  RoundProgram(std::vector<RoundWorker> workers, const Outer& outer, const OuterDivision& division)
      : workers_(std::move(workers)), outer_(outer)
  {
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      timelines_.emplace_back(outer, workers_[i].steps, workers_[i].step_time.has_value());
      add_worker(i);
    }
    add_outer_lanes(division);
  }

  std::size_t ranks() const override { return ranks_.size(); }
  const std::vector<Lane>& lanes(std::size_t rank) const override { return ranks_[rank].lanes; }
  const std::vector<Channel>& channels() const override { return channels_; }
  const std::vector<std::vector<std::size_t>>& grids() const override { return grids_; }
  const std::vector<std::vector<std::uint32_t>>& tied_stages() const override { return tied_stages_; }
  bool shares_parameters(std::uint32_t stage) const override
  {
    const std::size_t worker = worker_of_stage(stage);
    return workers_[worker].step->shares_parameters(stage - first_stage_[worker]);
  }
  bool sums_loss_with_gradients() const override
  {
    return std::ranges::any_of(workers_, [](const auto& worker) { return worker.step->sums_loss_with_gradients(); });
  }
  Bytes resident(std::size_t rank, Tier tier) const override
  {
    const RoundRank& own = ranks_[rank];
    return workers_[own.worker].step->resident(own.rank, tier) + own.resident[static_cast<std::size_t>(tier)];
  }
  std::uint64_t steps(std::size_t rank) const override { return timelines_[ranks_[rank].worker].played(); }
  std::uint64_t end_of_step(std::size_t rank, LaneId lane, std::uint64_t step) const override
  {
    const RoundRank& own = ranks_[rank];
    const std::uint64_t steps = step + 1;
    if (steps == timelines_[own.worker].played()) return length(rank, lane);
    return steps * step_length(own, lane) + (lane == compute_lane ? inserts_to(own, step) : 0);
  }
  std::uint64_t length(std::size_t rank, LaneId lane) const override
  {
    const RoundRank& own = ranks_[rank];
    if (lane >= own.step_lanes) return own.outer[lane - own.step_lanes].size();
    const std::uint64_t of_steps = timelines_[own.worker].played() * step_length(own, lane);
    return lane == compute_lane ? of_steps + own.inserts.size() : of_steps;
  }
  Instruction at(std::size_t rank, LaneId lane, std::uint64_t position) const override
  {
    const RoundRank& own = ranks_[rank];
    if (lane >= own.step_lanes) return own.outer[lane - own.step_lanes].at(position);
    const std::uint64_t in_step = step_length(own, lane);
    std::uint64_t of_steps = position;
    if (lane == compute_lane) {
      const std::size_t next = insert_at_or_after(own, position);
      if (next < own.inserts.size() && place_in_lane(own, next) == position) return own.inserts[next].instruction;
      of_steps -= next;
    }
    return of_step(own, lane, of_steps / in_step, of_steps % in_step);
  }

 private:
  void add_worker(std::size_t number)
  {
    const Program& step = *workers_[number].step;
    const std::size_t first_rank = ranks_.size();
    const std::size_t first_channel = channels_.size();
    first_stage_.push_back(stages_);
    first_rank_.push_back(first_rank);
    std::uint32_t stages = 0;
    for (std::size_t rank = 0; rank < step.ranks(); ++rank) {
      RoundRank& own = ranks_.emplace_back();
      own.worker = number;
      own.rank = rank;
      own.lanes = step.lanes(rank);
      own.step_lanes = own.lanes.size();
      for (auto& lane : own.lanes) {
        if (lane.channel) *lane.channel += first_channel;
      }
      const std::uint64_t computations = step.length(rank, compute_lane);
      for (std::uint64_t i = 0; i < computations; ++i) {
        stages = std::max(stages, step.at(rank, compute_lane, i).stage + 1);
      }
    }
    for (Channel channel : step.channels()) {
      for (auto& end : channel.ends) end.rank += first_rank;
      channels_.push_back(std::move(channel));
    }
    for (auto grid : step.grids()) {
      for (auto& rank : grid) rank += first_rank;
      grids_.push_back(std::move(grid));
    }
    for (auto tied : step.tied_stages()) {
      for (auto& stage : tied) stage += stages_;
      tied_stages_.push_back(std::move(tied));
    }
    stages_ += stages;
  }

  std::size_t worker_of_stage(std::uint32_t stage) const
  {
    const auto next = std::upper_bound(first_stage_.begin(), first_stage_.end(), stage);
    return static_cast<std::size_t>(next - first_stage_.begin()) - 1;
  }

  std::uint64_t step_length(const RoundRank& own, LaneId lane) const
  {
    return workers_[own.worker].step->length(own.rank, lane);
  }

  /// The inserts before the end of a step that is not the last: those at its begin and before.
  static std::uint64_t inserts_to(const RoundRank& own, std::uint64_t step)
  {
    const auto next = std::ranges::upper_bound(own.inserts, step, {}, &Insert::place);
    return static_cast<std::uint64_t>(next - own.inserts.begin());
  }

  std::uint64_t place_in_lane(const RoundRank& own, std::size_t insert) const
  {
    return own.inserts[insert].place * step_length(own, compute_lane) + insert;
  }

  std::size_t insert_at_or_after(const RoundRank& own, std::uint64_t position) const
  {
    std::size_t first = 0;
    for (std::size_t count = own.inserts.size(); count > 0;) {
      const std::size_t half = count / 2;
      if (place_in_lane(own, first + half) < position) {
        first += half + 1;
        count -= half + 1;
      } else {
        count = half;
      }
    }
    return first;
  }

  /// How many instructions of a lane of the step come before instruction `count` of step `step`, with it.
  std::uint64_t count_in_round(const RoundRank& own, LaneId lane, std::uint64_t step, std::uint64_t count) const
  {
    return step * step_length(own, lane) + count + (lane == compute_lane ? inserts_to(own, step) : 0);
  }

  Instruction of_step(const RoundRank& own, LaneId lane, std::uint64_t step, std::uint64_t position) const
  {
    Instruction instruction = workers_[own.worker].step->at(own.rank, lane, position);
    instruction.stage += first_stage_[own.worker];
    const std::uint64_t steps = timelines_[own.worker].played();
    Waits waits;
    for (const Wait& wait : instruction.waits) {
      std::uint16_t rounds_back = 0;
      std::uint64_t of = step;
      for (std::uint16_t back = 0; back < wait.periods_back; ++back) {
        if (of == 0) {
          ++rounds_back;
          of = steps;
        }
        --of;
      }
      waits.add({wait.lane, rounds_back, count_in_round(own, wait.lane, of, wait.count)});
    }
    instruction.waits = waits;
    return instruction;
  }

  std::size_t rank_of(std::size_t worker, std::size_t rank) const { return first_rank_[worker] + rank; }

  LaneId add_lane(std::size_t rank, Lane lane)
  {
    RoundRank& own = ranks_[rank];
    lane.keeps_step = false;
    own.lanes.push_back(std::move(lane));
    own.outer.emplace_back();
    return static_cast<LaneId>(own.lanes.size() - 1);
  }

  void add_outer_lanes(const OuterDivision& division)
  {
    std::vector<OuterWork> work;
    for (const RoundRank& own : ranks_) {
      OuterWork& added = work.emplace_back(timelines_[own.worker], outer_.codec);
      if (own.rank < workers_[own.worker].ranks.size()) added.costs = workers_[own.worker].ranks[own.rank];
      added.step_time = workers_[own.worker].step_time;
      for (LaneId lane = 0; lane < own.step_lanes; ++lane) {
        added.step_lengths.push_back(step_length(own, lane));
        if (own.lanes[lane].engine == Engine::Host) added.host_lanes.push_back(lane);
      }
    }
    for (const auto& piece : division.pieces) add_sync_channel(piece, work);
    for (const auto& gather : division.gathers) add_gather_channel(gather, division, work);
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (work[rank].step_lengths.at(compute_lane) == 0) continue;  // a data server
      if (work[rank].costs.on_machine) {
        work[rank].encode_lane = add_lane(rank, {"outer encode", Engine::Host});
        work[rank].update_lane = add_lane(rank, {"outer update", Engine::Host});
      }
      OuterInstructions added = work[rank].instructions();
      RoundRank& own = ranks_[rank];
      for (auto& [lane, instructions] : added.lanes) own.outer[lane - own.step_lanes] = std::move(instructions);
      own.inserts = std::move(added.inserts);
      own.resident[static_cast<std::size_t>(OuterWork::tier)] += added.resident;
    }
  }

  void add_sync_channel(const OuterPiece& piece, std::vector<OuterWork>& work)
  {
    Channel channel;
    channel.algorithm = outer_.algorithm;
    for (std::size_t worker = 0; worker < workers_.size(); ++worker) {
      const std::size_t rank = rank_of(worker, piece.ranks[worker]);
      const std::string name = fmt::format("outer sync {}", work[rank].pieces.size());
      const LaneId lane = add_lane(rank, {name, Engine::Network, channels_.size()});
      work[rank].pieces.push_back({piece.values, piece.gathers[worker], lane});
      channel.ends.push_back({rank, lane});
      channel.sites.push_back(fmt::format("{}", worker));
    }
    channels_.push_back(std::move(channel));
  }

  void add_gather_channel(const OuterGather& gather, const OuterDivision& division, std::vector<OuterWork>& work)
  {
    const auto number = static_cast<std::size_t>(&gather - division.gathers.data());
    std::vector<bool> has_values(outer_.fragments, false);
    for (const auto& piece : division.pieces) {
      if (piece.gathers[gather.worker] != number) continue;
      for (std::size_t f = 0; f < outer_.fragments; ++f) has_values[f] = has_values[f] || piece.values[f] > 0;
    }
    Channel channel;
    for (const std::size_t of_plan : gather.ranks) {
      const std::size_t rank = rank_of(gather.worker, of_plan);
      const std::string name = fmt::format("outer gather {}", work[rank].gathers.size());
      const LaneId lane = add_lane(rank, {name, Engine::Network, channels_.size()});
      work[rank].gathers.push_back({number, lane, has_values});
      channel.ends.push_back({rank, lane});
    }
    channels_.push_back(std::move(channel));
  }

  std::vector<RoundWorker> workers_;
  Outer outer_;
  std::vector<Timeline> timelines_;         // by worker
  std::vector<std::size_t> first_rank_;     // by worker
  std::vector<std::uint32_t> first_stage_;  // by worker
  std::uint32_t stages_ = 0;
  std::vector<RoundRank> ranks_;
  std::vector<Channel> channels_;
  std::vector<std::vector<std::size_t>> grids_;
  std::vector<std::vector<std::uint32_t>> tied_stages_;
};

}  // namespace

std::unique_ptr<Program> make_round_program(std::vector<RoundWorker> workers, const Outer& outer,
                                            const OuterDivision& division)
{
  return std::make_unique<RoundProgram>(std::move(workers), outer, division);
}

}  // namespace isobar::schedules
