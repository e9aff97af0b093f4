#include "schedules/rounds/outer_work.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace isobar::schedules {

namespace {

/// What the compute lane does between two steps, in the order in which it does so.
enum class Between { StepsInOne, Encode, Update, Take };

struct Planned {
  std::uint64_t place = 0;
  Between what = Between::StepsInOne;
  std::size_t fragment = 0;
  std::size_t item = 0;  ///< piece of an update, gather of a take
};

Instruction outer_instruction(Opcode opcode, LaneId lane, Seconds time = {})
{
  Instruction instruction;
  instruction.opcode = opcode;
  instruction.payload = Payload::OuterGradient;
  instruction.lane = lane;
  instruction.time = time;
  return instruction;
}

/// Makes the instructions of a rank.
class Maker {
 public:
  explicit Maker(const OuterWork& work) : work_(work), fragments_(work.timeline.snapshots().size())
  {
    plan();
    const bool on_machine = work.costs.on_machine;
    for (const Planned& each : planned_) {
      if (on_machine && each.what == Between::Encode) continue;
      count_.push_back(each.place * work.step_lengths[compute_lane] + in_compute_.size() + 1);
      in_compute_.push_back(each);
    }
  }

  OuterInstructions make()
  {
    if (work_.costs.on_machine) encode_on_machine();
    for (std::size_t i = 0; i < in_compute_.size(); ++i) {
      if (in_compute_[i].what == Between::Encode) encoded_[in_compute_[i].fragment] = {compute_lane, 0, count_[i]};
    }
    sync();
    if (work_.costs.on_machine) update_on_machine();
    for (std::size_t i = 0; i < in_compute_.size(); ++i) insert(in_compute_[i], count_[i]);
    for (std::size_t f = 0; f < fragments_; ++f) {
      made_.resident += Bytes(8 * static_cast<double>(values_of(f)));
      // Rounds begin with what is on its way from the one before.
      if (work_.timeline.merges()[f].periods_back > 0) made_.resident += memory_of(f);
    }
    return std::move(made_);
  }

 private:
  void plan()
  {
    for (const auto& pause : work_.timeline.pauses()) planned_.push_back({pause.place, Between::StepsInOne});
    for (std::size_t f = 0; f < fragments_; ++f) {
      const std::uint64_t taken = work_.timeline.merges()[f].place;
      if (values_of(f) > 0) planned_.push_back({work_.timeline.snapshots()[f], Between::Encode, f});
      for (std::size_t i = 0; i < work_.pieces.size(); ++i) {
        if (work_.pieces[i].values[f] > 0) planned_.push_back({taken, Between::Update, f, i});
      }
      for (std::size_t i = 0; i < work_.gathers.size(); ++i) {
        if (work_.gathers[i].has_values[f]) planned_.push_back({taken, Between::Take, f, i});
      }
    }
    std::ranges::stable_sort(planned_, [](const Planned& a, const Planned& b) {
      return a.place != b.place ? a.place < b.place : a.what < b.what;
    });
  }

  std::uint64_t values_of(std::size_t fragment) const
  {
    std::uint64_t values = 0;
    for (const auto& piece : work_.pieces) values += piece.values[fragment];
    return values;
  }

  /// What a fragment takes on its way: its encoded and its decoded values.
  Bytes memory_of(std::size_t fragment) const
  {
    Bytes memory;
    for (const auto& piece : work_.pieces) {
      if (piece.values[fragment] == 0) continue;
      memory += encoded_size(work_.codec, piece.values[fragment]);
      memory += Bytes(4 * static_cast<double>(piece.values[fragment]));
    }
    return memory;
  }

  Instruction encode(std::size_t fragment, LaneId lane) const
  {
    auto made = outer_instruction(Opcode::Encode, lane, static_cast<double>(values_of(fragment)) * work_.costs.encode);
    made.acquires = {OuterWork::tier, memory_of(fragment)};
    return made;
  }

  Instruction update(std::size_t fragment, std::size_t piece, LaneId lane, std::uint16_t periods_back) const
  {
    const auto values = static_cast<double>(work_.pieces[piece].values[fragment]);
    auto made = outer_instruction(Opcode::OuterUpdate, lane, values * work_.costs.update);
    made.waits.add({work_.pieces[piece].lane, periods_back, synced_.at({fragment, piece})});
    return made;
  }

  void encode_on_machine()
  {
    auto& lane = made_.lanes[*work_.encode_lane];
    for (const Planned& each : planned_) {
      if (each.what != Between::Encode) continue;
      auto made = encode(each.fragment, *work_.encode_lane);
      const auto before =
          std::ranges::count_if(in_compute_, [&](const Planned& other) { return other.place < each.place; });
      made.waits.add(
          {compute_lane, 0, each.place * work_.step_lengths[compute_lane] + static_cast<std::uint64_t>(before)});
      for (const LaneId host : work_.host_lanes) made.waits.add({host, 0, each.place * work_.step_lengths[host]});
      lane.push_back(made);
      encoded_[each.fragment] = {*work_.encode_lane, 0, lane.size()};
    }
  }

  /// Fragment after fragment, so that all ends of a channel have the same order.
  void sync()
  {
    for (std::size_t f = 0; f < fragments_; ++f) {
      for (std::size_t i = 0; i < work_.pieces.size(); ++i) {
        const auto& piece = work_.pieces[i];
        if (piece.values[f] == 0) continue;
        auto made = outer_instruction(is_sparse(work_.codec) ? Opcode::AllGather : Opcode::AllReduce, piece.lane);
        made.size = encoded_size(work_.codec, piece.values[f]);
        made.waits.add(encoded_.at(f));
        auto& lane = made_.lanes[piece.lane];
        lane.push_back(made);
        synced_[{f, i}] = lane.size();
      }
    }
  }

  void update_on_machine()
  {
    auto& lane = made_.lanes[*work_.update_lane];
    for (std::size_t f = 0; f < fragments_; ++f) {
      for (std::size_t i = 0; i < work_.pieces.size(); ++i) {
        if (work_.pieces[i].values[f] == 0) continue;
        lane.push_back(update(f, i, *work_.update_lane, 0));
        updated_[{f, i}] = {*work_.update_lane, 0, lane.size()};
      }
      for (const auto& gather : work_.gathers) {
        if (gather.has_values[f]) add_gather(gather, f);
      }
    }
  }

  /// After the last update of its pieces, which the others come before.
  void add_gather(const OuterWork::Gather& gather, std::size_t fragment)
  {
    auto made = outer_instruction(Opcode::AllGather, gather.lane);
    made.payload = Payload::Parameter;
    std::uint64_t values = 0;
    for (std::size_t i = 0; i < work_.pieces.size(); ++i) {
      if (work_.pieces[i].gather != gather.number || work_.pieces[i].values[fragment] == 0) continue;
      values += work_.pieces[i].values[fragment];
      made.waits = updated_.at({fragment, i});
    }
    made.size = Bytes(4 * static_cast<double>(values));
    auto& lane = made_.lanes[gather.lane];
    lane.push_back(made);
    gathered_[{fragment, gather.number}] = lane.size();
  }

  void insert(const Planned& each, std::uint64_t count)
  {
    const std::uint16_t periods_back = work_.timeline.merges()[each.fragment].periods_back;
    switch (each.what) {
      case Between::Encode:
        made_.inserts.push_back({each.place, encode(each.fragment, compute_lane)});
        return;
      case Between::Update:
        made_.inserts.push_back({each.place, inserted_update(each, periods_back)});
        if (!work_.costs.on_machine) gather_after(each, count);
        return;
      case Between::Take: {
        auto made = outer_instruction(Opcode::OuterUpdate, compute_lane);
        const auto& gather = work_.gathers[each.item];
        if (!gathered_.contains({each.fragment, gather.number})) add_gather(gather, each.fragment);  // it updates none
        // On the machine, updates and gathers do not wait for the compute lane.
        const std::uint16_t back = work_.costs.on_machine ? periods_back : std::uint16_t{0};
        made.waits.add({gather.lane, back, gathered_.at({each.fragment, gather.number})});
        made_.inserts.push_back({each.place, made});
        return;
      }
      case Between::StepsInOne: {
        const auto pause = std::ranges::find(work_.timeline.pauses(), each.place, &Timeline::Pause::place);
        auto made = outer_instruction(Opcode::Update, compute_lane,
                                      static_cast<double>(pause->steps) * work_.step_time.value());
        made.payload = Payload::Parameter;
        made_.inserts.push_back({each.place, made});
        return;
      }
    }
  }

  Instruction inserted_update(const Planned& each, std::uint16_t periods_back) const
  {
    Instruction made;
    if (work_.costs.on_machine) {
      made = outer_instruction(Opcode::OuterUpdate, compute_lane);
      Wait wait = updated_.at({each.fragment, each.item});
      wait.periods_back = periods_back;
      made.waits.add(wait);
    } else {
      made = update(each.fragment, each.item, compute_lane, periods_back);
    }
    if (is_last_piece(each)) made.releases = {OuterWork::tier, memory_of(each.fragment)};
    return made;
  }

  bool is_last_piece(const Planned& update) const
  {
    for (std::size_t i = update.item + 1; i < work_.pieces.size(); ++i) {
      if (work_.pieces[i].values[update.fragment] > 0) return false;
    }
    return true;
  }

  void gather_after(const Planned& update, std::uint64_t count)
  {
    updated_[{update.fragment, update.item}] = {compute_lane, 0, count};
    if (!is_last_piece(update)) return;
    for (const auto& gather : work_.gathers) {
      if (gather.has_values[update.fragment]) add_gather(gather, update.fragment);
    }
  }

  using FragmentAndItem = std::pair<std::size_t, std::size_t>;

  const OuterWork& work_;
  std::size_t fragments_;
  std::vector<Planned> planned_;
  std::vector<Planned> in_compute_;
  std::vector<std::uint64_t> count_;                   // of the compute lane, with each of these
  std::map<std::size_t, Wait> encoded_;                // by fragment: what its syncs wait for
  std::map<FragmentAndItem, std::uint64_t> synced_;    // count of the piece's lane
  std::map<FragmentAndItem, Wait> updated_;            // by piece
  std::map<FragmentAndItem, std::uint64_t> gathered_;  // count of the gather's lane, by its number
  OuterInstructions made_;
};

}  // namespace

Timeline::Timeline(const Outer& outer, std::uint64_t steps, bool in_one)
{
  const auto snapshots_at = snapshot_steps(steps, outer.fragments);
  std::vector<std::uint64_t> merges_at;
  for (const std::uint64_t step : snapshots_at) {
    const std::uint64_t merge = step + outer.delay;
    merges_at.push_back(merge > steps ? merge - steps : merge);
    merges_.push_back({0, static_cast<std::uint16_t>(merge > steps ? 1 : 0)});
  }
  std::set<std::uint64_t> events(snapshots_at.begin(), snapshots_at.end());
  events.insert(merges_at.begin(), merges_at.end());
  events.insert(steps);
  std::map<std::uint64_t, std::uint64_t> place_of;
  std::uint64_t before = 0;
  for (const std::uint64_t event : events) {
    const std::uint64_t between = event - before;
    if (in_one && between > steps_by_step) {
      played_ += steps_by_step;
      pauses_.push_back({played_, between - steps_by_step});
    } else {
      played_ += between;
    }
    place_of[event] = played_;
    before = event;
  }
  for (const std::uint64_t step : snapshots_at) snapshots_.push_back(place_of.at(step));
  for (std::size_t i = 0; i < merges_.size(); ++i) merges_[i].place = place_of.at(merges_at[i]);
}

OuterInstructions OuterWork::instructions() const
{
  return Maker(*this).make();
}

}  // namespace isobar::schedules
