#include "schedules/lowering/tiers.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace isobar::schedules {

namespace {

constexpr std::uint64_t never_visited = std::numeric_limits<std::uint64_t>::max();

bool uses(const TieredRank& rank, bool (*is_so)(const Residence&))
{
  return std::any_of(rank.parts.begin(), rank.parts.end(),
                     [&](const TieredPart& part) { return is_so(part.residence); });
}

bool is_updated_by_machine(const Residence& residence)
{
  return residence.optimizer != Tier::Device;
}

/// What all parts of the rank share: places, overlap and copies.
Residence common_of(const TieredRank& rank)
{
  Residence common;
  for (const auto& part : rank.parts) {
    const Residence& residence = part.residence;
    if (residence.parameters != Tier::Device) {
      common.parameter_slots = residence.parameter_slots;
      common.copies = residence.copies;
    }
    if (residence.gradients != Tier::Device) common.gradient_slots = residence.gradient_slots;
    if (residence.optimizer != Tier::Device) common.overlap = residence.overlap;
  }
  return common;
}

/// Whether no update may begin before all gradients of the rank are there.
bool updates_wait_for_all(const TieredRank& rank)
{
  const Residence common = common_of(rank);
  return common.overlap == UpdateOverlap::None || (rank.needs_facts && common.copies != Copies::Redundant);
}

/// Places on the host for gradients.
std::size_t host_slots_of(const TieredRank& rank)
{
  const auto updated =
      static_cast<std::size_t>(std::count_if(rank.parts.begin(), rank.parts.end(), [](const TieredPart& part) {
        return is_updated_by_machine(part.residence);
      }));
  const bool holds_all = updates_wait_for_all(rank) || common_of(rank).overlap == UpdateOverlap::Delayed;
  return holds_all ? updated : std::min(updated, host_gradient_slots);
}

/// Consecutive passes of one kind over a part that is not on the device.
struct Visit {
  std::uint32_t part = 0;
  bool is_forward = true;
  std::uint64_t first = 0;  // positions in the order
  std::uint64_t last = 0;
  std::uint64_t next = never_visited;  // visit of the same part
  std::optional<std::size_t> by;       // the load that brings its parameters, by number
};

/// A copy before it has its place in its lane.
struct PendingCopy {
  std::uint64_t at = 0;  // a load is needed by this position of the order, a store is possible after it
  int rank = 0;          // among those of one position
  Instruction instruction;
  std::size_t number = 0;  // of its kind, in the order in which they were made
};

/// Puts copies into the order of their lane; returns the place of each by number.
std::vector<std::uint64_t> arrange(std::vector<PendingCopy>& copies)
{
  std::stable_sort(copies.begin(), copies.end(), [](const PendingCopy& a, const PendingCopy& b) {
    return std::pair(a.at, a.rank) < std::pair(b.at, b.rank);
  });
  std::vector<std::uint64_t> place(copies.size());
  for (std::size_t i = 0; i < copies.size(); ++i) place[copies[i].number] = i;
  return place;
}

class Builder {
 public:
  Builder(const Order& order, const TieredRank& rank)
      : order_(order), rank_(rank), common_(common_of(rank)), waits_(order.length())
  {
    LaneId next = rank.first_lane;
    const auto lane_if = [&](bool exists) { return exists ? std::optional(next++) : std::nullopt; };
    const bool has_updates = uses(rank, is_updated_by_machine);
    const bool has_activations = uses(rank, [](const Residence& each) { return each.activations == Tier::Host; });
    copy_in_ = lane_if(has_updates || has_activations);
    copy_out_ = lane_if(has_updates || has_activations);
    host_ = lane_if(has_updates);
    const bool has_disk = uses(rank, [](const Residence& each) { return each.optimizer == Tier::Disk; });
    read_ = lane_if(has_disk);
    write_ = lane_if(has_disk);
  }

  void build()
  {
    find_passes();
    plan_parameters();
    plan_gradients();
    plan_activations();
    store_place_ = arrange(stores_);
    add_updates();
    add_parameter_loads();
    add_refreshes();
    load_place_ = arrange(loads_);
    resolve();
  }

  std::vector<TierLane> take_lanes()
  {
    std::vector<TierLane> lanes;
    const auto add = [&](std::optional<LaneId> id, const char* name, Engine engine, std::vector<Instruction> of_lane) {
      if (!id) return;
      for (auto& instruction : of_lane) instruction.lane = *id;
      lanes.push_back({{.name = name, .engine = engine}, std::move(of_lane)});
    };
    add(copy_in_, "copy in", Engine::CopyIn, instructions_of(loads_));
    add(copy_out_, "copy out", Engine::CopyOut, instructions_of(stores_));
    add(host_, "host update", Engine::Host, std::move(updates_));
    add(read_, "disk read", Engine::DiskRead, std::move(reads_));
    add(write_, "disk write", Engine::DiskWrite, std::move(writes_));
    return lanes;
  }

  std::vector<Waits> take_waits() { return std::move(waits_); }

 private:
  /// The wait of a task for a copy: resolved when its lane is in order.
  struct TaskWait {
    std::uint64_t position = 0;
    bool is_load = true;
    std::size_t number = 0;
    std::uint16_t periods_back = 0;
  };
  struct Passes {
    std::uint64_t first_backward = never_visited;
    std::uint64_t last_backward = 0;
    std::vector<std::uint64_t> forwards;  // positions
  };

  static std::vector<Instruction> instructions_of(const std::vector<PendingCopy>& copies)
  {
    std::vector<Instruction> instructions;
    for (const auto& copy : copies) instructions.push_back(copy.instruction);
    return instructions;
  }

  Instruction make(std::uint32_t part, Opcode opcode, Payload payload, Opcode pass, Bytes size) const
  {
    const TieredPart& of = rank_.parts[part];
    Instruction instruction;
    instruction.opcode = opcode;
    instruction.payload = payload;
    instruction.pass = pass;
    instruction.stage = of.stage;
    instruction.first_layer = of.first_layer;
    instruction.last_layer = of.last_layer;
    instruction.size = size;
    return instruction;
  }

  std::size_t add_store(std::uint64_t after, int rank, const Instruction& instruction)
  {
    stores_.push_back({after, rank, instruction, stores_.size()});
    return stores_.size() - 1;
  }

  std::size_t add_load(std::uint64_t before, int rank, const Instruction& instruction)
  {
    loads_.push_back({before, rank, instruction, loads_.size()});
    return loads_.size() - 1;
  }

  void find_passes()
  {
    passes_.resize(rank_.parts.size());
    std::map<std::uint32_t, std::size_t> last_visit;
    for (std::uint64_t position = 0; position < order_.length(); ++position) {
      const Task task = order_.at(position);
      Passes& passes = passes_[task.part];
      const bool is_forward = task.opcode == Opcode::Forward;
      if (is_forward) {
        passes.forwards.push_back(position);
      } else {
        passes.first_backward = std::min(passes.first_backward, position);
        passes.last_backward = position;
        last_backward_ = position;
        is_training_ = true;
      }
      if (rank_.parts[task.part].residence.parameters == Tier::Device) continue;
      const bool continues = !visits_.empty() && visits_.back().part == task.part &&
                             visits_.back().is_forward == is_forward && visits_.back().last + 1 == position;
      if (continues) {
        visits_.back().last = position;
        continue;
      }
      const auto before = last_visit.find(task.part);
      if (before != last_visit.end()) visits_[before->second].next = visits_.size();
      last_visit[task.part] = visits_.size();
      visits_.push_back({task.part, is_forward, position, position, never_visited, {}});
    }
  }

  /// Decides which visits need a load, and whose place it takes: that of the parameters that are needed last.
  void plan_parameters()
  {
    struct Place {
      std::uint64_t needed = never_visited;   // the next visit of what is there
      std::optional<std::size_t> visit = {};  // the last one of what is there; none: of the step before
    };
    if (visits_.empty()) return;
    const std::size_t places = common_.parameter_slots;
    const auto is_kept_longer = [](const std::pair<std::uint64_t, std::size_t>& a,
                                   const std::pair<std::uint64_t, std::size_t>& b) { return a > b; };
    std::set<std::pair<std::uint64_t, std::size_t>, decltype(is_kept_longer)> by_need(is_kept_longer);
    std::vector<Place> all(places);
    for (std::size_t i = 0; i < places; ++i) by_need.emplace(never_visited - i, i);
    std::map<std::uint32_t, std::size_t> place_of;
    std::uint64_t done = places;
    for (std::size_t i = 0; i < visits_.size(); ++i) {
      Visit& visit = visits_[i];
      const auto found = place_of.find(visit.part);
      std::size_t at = 0;
      if (found != place_of.end()) {
        at = found->second;
        visit.by = visits_[*all[at].visit].by;
        by_need.erase({all[at].needed, at});
      } else {
        at = by_need.begin()->second;
        Place& place = all[at];
        by_need.erase(by_need.begin());
        visit.by = parameter_loads_.size();
        parameter_loads_.push_back({i, static_cast<std::uint32_t>(at), place.visit, !place.visit});
        if (place.visit) {
          place_of.erase(visits_[*place.visit].part);
          leave(*place.visit);
        }
        place_of[visit.part] = at;
      }
      // Those that are not needed again become free in the order of their last use.
      all[at] = {visit.next == never_visited ? never_visited - ++done : visit.next, i};
      by_need.emplace(all[at].needed, at);
    }
    for (const auto& place : all) {
      if (place.visit) leave(*place.visit);
    }
    // What the step before has left in a place is what this one leaves there.
    for (auto& load : parameter_loads_) {
      if (load.is_of_last_step) load.before = all[load.place].visit;
    }
  }

  /// Parameters leave their place after a visit.
  void leave(std::size_t visit)
  {
    if (common_.copies == Copies::Lean || written_back_.contains(visit)) return;
    const Visit& of = visits_[visit];
    const Opcode pass = of.is_forward ? Opcode::Forward : Opcode::Backward;
    written_back_[visit] =
        add_store(of.last, 0, make(of.part, Opcode::Store, Payload::Parameter, pass, rank_.parts[of.part].parameters));
    stores_.back().instruction.waits.add({compute_lane, 0, of.last + 1});
  }

  void plan_gradients()
  {
    if (!host_ || !is_training_) return;
    std::vector<std::uint32_t> by_first;
    for (std::uint32_t part = 0; part < rank_.parts.size(); ++part) {
      if (!is_updated_by_machine(rank_.parts[part].residence)) continue;
      updated_.push_back(part);
      if (rank_.parts[part].residence.gradients == Tier::Host) by_first.push_back(part);
    }
    std::sort(updated_.begin(), updated_.end(),
              [&](std::uint32_t a, std::uint32_t b) { return passes_[a].last_backward < passes_[b].last_backward; });
    std::sort(by_first.begin(), by_first.end(),
              [&](std::uint32_t a, std::uint32_t b) { return passes_[a].first_backward < passes_[b].first_backward; });
    for (const std::uint32_t part : updated_) {
      const bool leaves_early = rank_.parts[part].residence.gradients == Tier::Host;
      Instruction store =
          make(part, Opcode::Store, Payload::ParameterGradient, Opcode::Backward, rank_.parts[part].gradients);
      const Wait& synced = rank_.parts[part].synced;
      const std::uint64_t after = leaves_early ? passes_[part].last_backward : last_backward_;
      if (synced.count > 0) {
        store.waits.add(synced);
      } else {
        store.waits.add({compute_lane, 0, after + 1});
      }
      if (leaves_early) slot_order_.push_back(part);
      // Gradients that stay have places of their own.
      store.place = static_cast<std::uint32_t>(common_.gradient_slots + part);
      gradient_store_[part] = add_store(after, 1, store);
    }
    take_gradient_places(by_first);
  }

  /// The first backward of a part waits for a place for its gradients.
  void take_gradient_places(const std::vector<std::uint32_t>& by_first)
  {
    const std::size_t places = std::min(common_.gradient_slots, by_first.size());
    for (std::size_t i = 0; i < by_first.size(); ++i) {
      const std::uint32_t part = by_first[i];
      // The place of the one that left so many before, or of the last one of the step before that had it.
      const bool is_of_last_step = i < places;
      const std::size_t before = is_of_last_step ? i + (by_first.size() - 1 - i) / places * places : i - places;
      const std::uint32_t freed = slot_order_[before];
      if (!is_of_last_step && passes_[freed].last_backward >= passes_[part].first_backward) {
        throw InputError(
            fmt::format("stages[{}].residence.gradient_slots", rank_.parts[part].stage),
            fmt::format("{}; the backward passes of more stages of the device overlap, and each needs a place until "
                        "its last micro-batch; give as many, or use schedule gpipe",
                        common_.gradient_slots));
      }
      gradient_waits_.push_back({passes_[part].first_backward, freed, is_of_last_step});
      stores_[gradient_store_.at(part)].instruction.place = static_cast<std::uint32_t>(i % places);
    }
  }

  void plan_activations()
  {
    std::vector<std::size_t> stored;  // stores of activations
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::size_t> store_of;
    for (std::uint64_t position = 0; is_training_ && copy_out_ && position < order_.length(); ++position) {
      const Task task = order_.at(position);
      const TieredPart& part = rank_.parts[task.part];
      if (part.residence.activations != Tier::Host) continue;
      if (task.opcode == Opcode::Forward) {
        // Two forwards may keep theirs on the device at a time.
        if (stored.size() >= 2) task_waits_.push_back({position, false, stored[stored.size() - 2], 0});
        Instruction store = make(task.part, Opcode::Store, Payload::Activation, Opcode::Forward, part.activations);
        store.microbatch = task.microbatch;
        store.waits.add({compute_lane, 0, position + 1});
        store.acquires = {Tier::Host, part.activations};
        store.releases = {Tier::Device, part.activations};
        stored.push_back(add_store(position, 2, store));
        store_of[{task.part, task.microbatch}] = stored.back();
      } else if (task.opcode != Opcode::BackwardWeight) {
        Instruction load = make(task.part, Opcode::Load, Payload::Activation, Opcode::Backward, part.activations);
        load.microbatch = task.microbatch;
        load.waits.add({compute_lane, 0, position > 0 ? position - 1 : 0});
        load.acquires = {Tier::Device, part.activations};
        load.releases = {Tier::Host, part.activations};
        const std::size_t number = add_load(position, 1, load);
        activation_loads_.emplace_back(number, store_of.at({task.part, task.microbatch}));
        task_waits_.push_back({position, true, number, 0});
      }
    }
  }

  /// Adds the machine's updates, in the order in which gradients leave the device.
  void add_updates()
  {
    if (!host_ || !is_training_) return;
    std::sort(updated_.begin(), updated_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return store_place_[gradient_store_.at(a)] < store_place_[gradient_store_.at(b)];
    });
    const bool is_delayed = common_.overlap == UpdateOverlap::Delayed;
    const std::size_t host_slots = host_slots_of(rank_);
    const std::size_t count = updated_.size();
    std::uint64_t staged = 0;
    const auto on_disk = static_cast<std::uint64_t>(std::count_if(updated_.begin(), updated_.end(), [&](auto part) {
      return rank_.parts[part].residence.optimizer == Tier::Disk;
    }));
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t part = updated_[i];
      update_place_[part] = i;
      const TieredPart& of = rank_.parts[part];
      Instruction update = make(part, Opcode::Update, Payload::Parameter, Opcode::Update, Bytes(0));
      update.time = of.update;
      const std::uint64_t arrived = store_place_[gradient_store_.at(part)] + 1;
      const std::uint64_t all_arrived = store_place_[gradient_store_.at(updated_.back())] + 1;
      const std::uint16_t back = is_delayed ? 1 : 0;
      update.waits.add({*copy_out_, back, common_.overlap == UpdateOverlap::None ? all_arrived : arrived});
      if (rank_.needs_facts && common_.copies != Copies::Redundant) {
        Wait facts = rank_.facts.count > 0 ? rank_.facts : Wait{compute_lane, 0, last_backward_ + 1};
        facts.periods_back = back;
        update.waits.add(facts);
      }
      if (of.residence.optimizer == Tier::Disk) {
        add_disk_accesses(part, staged, on_disk, update);
        ++staged;
      }
      updates_.push_back(update);
      // The place on the host that the gradient takes.
      Instruction& store = stores_[store_place_[gradient_store_.at(part)]].instruction;
      if (is_delayed) {
        store.waits.add({*host_, 0, i + 1});
      } else if (i >= host_slots) {
        store.waits.add({*host_, 0, i - host_slots + 1});
      } else {
        store.waits.add({*host_, 1, host_slots < count ? i + count - host_slots + 1 : i + 1});
      }
    }
  }

  /// The optimizer's state is read before the update and written after it.
  void add_disk_accesses(std::uint32_t part, std::uint64_t number, std::uint64_t count, Instruction& update)
  {
    const Bytes size = rank_.parts[part].optimizer;
    Instruction read = make(part, Opcode::Read, Payload::Optimizer, Opcode::Update, size);
    if (number >= staged_states) {
      read.waits.add({*write_, 0, number - staged_states + 1});
    } else {
      const std::uint64_t freed = number + count < staged_states ? 0 : number + count - staged_states + 1;
      read.waits.add({*write_, 1, std::max(number + 1, freed)});
    }
    reads_.push_back(read);
    update.waits.add({*read_, 0, number + 1});
    Instruction write = make(part, Opcode::Write, Payload::Optimizer, Opcode::Update, size);
    write.waits.add({*host_, 0, updates_.size() + 1});
    writes_.push_back(write);
  }

  /// The wait of what uses the parameters of a part for their update.
  Wait updated(std::uint32_t part) const
  {
    if (!is_training_) return {};
    const bool waits_for_all = common_.overlap == UpdateOverlap::None || common_.overlap == UpdateOverlap::Step;
    return {*host_, 1, waits_for_all ? updates_.size() : update_place_.at(part) + 1};
  }

  void add_parameter_loads()
  {
    for (const auto& [number, place, before, is_of_last_step] : parameter_loads_) {
      const Visit& visit = visits_[number];
      Instruction load =
          make(visit.part, Opcode::Load, Payload::Parameter, visit.is_forward ? Opcode::Forward : Opcode::Backward,
               rank_.parts[visit.part].parameters + rank_.parts[visit.part].tied);
      load.place = place;
      if (before) {
        const std::uint16_t back = is_of_last_step ? 1 : 0;
        const auto written_back = written_back_.find(*before);
        if (written_back != written_back_.end()) {
          load.waits.add({*copy_out_, back, store_place_[written_back->second] + 1});
        } else {
          load.waits.add({compute_lane, back, visits_[*before].last + 1});
        }
      }
      load.waits.add(updated(visit.part));
      load_of_.push_back(add_load(visit.first, 0, load));
    }
    for (const auto& visit : visits_) task_waits_.push_back({visit.first, true, load_of_[visit.by.value()], 0});
    if (!is_training_ || common_.overlap != UpdateOverlap::Delayed) return;
    // An update must not change parameters that a backward of the step still loads.
    std::map<std::uint32_t, std::size_t> last_load;
    for (const auto& load : parameter_loads_) {
      last_load[visits_[load.visit].part] = load_of_[visits_[load.visit].by.value()];
    }
    for (const auto& [part, load] : last_load) delayed_updates_.emplace_back(part, load);
  }

  /// Parameters that are on the device come there again when the machine has updated its own.
  void add_refreshes()
  {
    if (!host_ || !is_training_) return;
    for (const std::uint32_t part : updated_) {
      if (rank_.parts[part].residence.parameters != Tier::Device) continue;
      Instruction load = make(part, Opcode::Load, Payload::Parameter, Opcode::Update, rank_.parts[part].parameters);
      load.waits.add({*host_, 0, update_place_.at(part) + 1});
      load.waits.add({compute_lane, 0, passes_[part].last_backward + 1});
      const std::size_t number = add_load(order_.length(), 0, load);
      task_waits_.push_back({passes_[part].forwards.front(), true, number, 1});
    }
  }

  /// Writes the waits of tasks and copies for copies, whose lanes are in order.
  void resolve()
  {
    for (const auto& [load, store] : activation_loads_) {
      loads_[load_place_[load]].instruction.waits.add({*copy_out_, 0, store_place_[store] + 1});
    }
    for (const auto& [part, load] : delayed_updates_) {
      updates_[update_place_.at(part)].waits.add({*copy_in_, 0, load_place_[load] + 1});
    }
    std::vector<std::map<std::pair<LaneId, std::uint16_t>, std::uint64_t>> awaited(order_.length());
    const auto await = [&](std::uint64_t position, const Wait& wait) {
      auto& count = awaited[position][{wait.lane, wait.periods_back}];
      count = std::max(count, wait.count);
    };
    for (const auto& [position, is_load, number, back] : task_waits_) {
      const auto& place = is_load ? load_place_ : store_place_;
      await(position, {is_load ? *copy_in_ : *copy_out_, back, place[number] + 1});
    }
    for (const auto& [position, freed, is_of_last_step] : gradient_waits_) {
      const std::uint16_t back = is_of_last_step ? 1 : 0;
      if (common_.copies == Copies::Redundant) {
        await(position, {*host_, back, update_place_.at(freed) + 1});
      } else {
        await(position, {*copy_out_, back, store_place_[gradient_store_.at(freed)] + 1});
      }
    }
    const bool ends_in_step = common_.overlap == UpdateOverlap::None || common_.overlap == UpdateOverlap::Step;
    if (host_ && is_training_ && ends_in_step) await(0, {*host_, 1, updates_.size()});
    await_last_gradients(await);
    for (std::size_t position = 0; position < awaited.size(); ++position) {
      for (const auto& [lane, count] : awaited[position]) waits_[position].add({lane.first, lane.second, count});
    }
  }

  /// Gradients that stay on the device until the end of a step leave before those of the next come.
  template <typename Await>
  void await_last_gradients(const Await& await) const
  {
    for (const std::uint32_t part : updated_) {
      if (rank_.parts[part].residence.gradients != Tier::Device) continue;
      await(passes_[part].first_backward, {*copy_out_, 1, store_place_[gradient_store_.at(part)] + 1});
    }
  }

  struct ParameterLoad {
    std::size_t visit = 0;
    std::uint32_t place = 0;
    std::optional<std::size_t> before;  // the visit of what was in its place
    bool is_of_last_step = false;
  };
  struct GradientWait {
    std::uint64_t position = 0;
    std::uint32_t freed = 0;  // the part whose gradients were in the place
    bool is_of_last_step = false;
  };

  const Order& order_;
  const TieredRank& rank_;
  const Residence common_;
  std::optional<LaneId> copy_in_, copy_out_, host_, read_, write_;
  bool is_training_ = false;
  std::uint64_t last_backward_ = 0;  // of the rank
  std::vector<Passes> passes_;       // by part
  std::vector<Visit> visits_;
  std::vector<ParameterLoad> parameter_loads_;
  std::vector<std::size_t> load_of_;                     // number of each of them among loads_
  std::map<std::size_t, std::size_t> written_back_;      // by visit: number of the store
  std::vector<std::uint32_t> updated_;                   // parts that the machine updates
  std::vector<std::uint32_t> slot_order_;                // parts by the time at which their gradients leave
  std::map<std::uint32_t, std::size_t> gradient_store_;  // by part: number of the store
  std::map<std::uint32_t, std::size_t> update_place_;    // by part, in the host's lane
  std::vector<GradientWait> gradient_waits_;
  std::vector<std::pair<std::size_t, std::size_t>> activation_loads_;  // numbers of the load and the store
  std::vector<std::pair<std::uint32_t, std::size_t>> delayed_updates_;
  std::vector<TaskWait> task_waits_;
  std::vector<PendingCopy> loads_, stores_;
  std::vector<std::uint64_t> load_place_, store_place_;  // by number
  std::vector<Instruction> updates_, reads_, writes_;
  std::vector<Waits> waits_;
};

}  // namespace

TierLanes::TierLanes(const Order& order, const TieredRank& rank)
{
  Builder builder(order, rank);
  builder.build();
  lanes_ = builder.take_lanes();
  task_waits_ = builder.take_waits();
  for (std::uint32_t part = 0; part < rank.parts.size(); ++part) {
    if (!is_updated_by_machine(rank.parts[part].residence)) device_updates_.push_back(part);
  }
}

std::array<Bytes, tier_count> memory_of_tiers(const TieredRank& rank)
{
  std::array<Bytes, tier_count> held{};
  const auto hold = [&](Tier tier, Bytes size) { held[static_cast<std::size_t>(tier)] += size; };
  Bytes largest_parameters;  // of those that take turns on the device
  Bytes largest_gradients;   // the same
  Bytes largest_updated;     // gradients on the host
  Bytes all_updated;
  std::size_t updated = 0;
  Bytes largest_state;  // of those on the disk
  std::size_t on_disk = 0;
  for (const auto& part : rank.parts) {
    const Residence& residence = part.residence;
    if (residence.parameters == Tier::Device) {
      hold(Tier::Device, part.parameters);
    } else {
      largest_parameters = std::max(largest_parameters, part.parameters + part.tied);
    }
    if (residence.gradients == Tier::Device) {
      hold(Tier::Device, part.gradients);
    } else {
      largest_gradients = std::max(largest_gradients, part.gradients);
    }
    hold(residence.optimizer, part.optimizer);
    if (!is_updated_by_machine(residence)) continue;
    hold(Tier::Host, part.parameters);  // which the machine updates
    largest_updated = std::max(largest_updated, part.gradients);
    all_updated += part.gradients;
    ++updated;
    if (residence.optimizer != Tier::Disk) continue;
    largest_state = std::max(largest_state, part.optimizer);
    ++on_disk;
  }
  const Residence common = common_of(rank);
  hold(Tier::Device, largest_parameters * static_cast<double>(common.parameter_slots));
  hold(Tier::Device, largest_gradients * static_cast<double>(common.gradient_slots));
  const std::size_t waiting = host_slots_of(rank);
  hold(Tier::Host, waiting == updated ? all_updated : largest_updated * static_cast<double>(waiting));
  hold(Tier::Host, largest_state * static_cast<double>(std::min(on_disk, staged_states)));
  return held;
}

}  // namespace isobar::schedules
