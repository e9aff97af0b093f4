#include "core/steps/tier_needs.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

namespace isobar {

namespace {

constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

// Places between device and update, and between update and disk (docs/offloading.md).
constexpr std::size_t most_waiting_gradients = 3;
constexpr std::size_t most_staged_states = 3;
// Forwards whose activations may be on the device at a time.
constexpr std::size_t most_kept_forwards = 2;

/// Consecutive passes of one kind over a part whose parameters are not on the device.
struct Stay {
  std::size_t part = 0;
  bool is_forward = true;
  std::size_t first = 0;  // positions
  std::size_t last = 0;
  std::size_t next = none;    // stay of the part
  std::size_t load = none;    // by which its parameters came
  std::size_t before = none;  // of a stay that loads: the stay that had its place, maybe of the step before
  bool is_first_there = false;
};

/// A copy that has no place in its lane yet. Those of one position follow each other by rank, and as they were made.
struct Copy {
  std::size_t position = 0;
  int rank = 0;
  TierTask task;
};

class TierPlanner {
 public:
  TierPlanner(const std::vector<PartPass>& passes, const std::vector<MovedPart>& parts, bool needs_facts,
              bool has_facts)
      : passes_(passes), parts_(parts), needs_facts_(needs_facts), has_facts_(has_facts), spans_(parts.size())
  {
    for (const MovedPart& part : parts) {
      const Residence& residence = part.residence;
      if (residence.parameters != Tier::Device) parameter_slots_ = residence.parameter_slots;
      if (residence.parameters != Tier::Device) copies_ = residence.copies;
      if (residence.gradients != Tier::Device) gradient_slots_ = residence.gradient_slots;
      if (residence.optimizer != Tier::Device) overlap_ = residence.overlap;
    }
  }

  TierNeeds needs() &&
  {
    find_stays();
    fill_places();
    store_parameters();
    store_gradients();
    move_activations();
    arrange(stores_, needs_.lane(TierLane::Store), place_of_store_);
    update();
    load_parameters();
    refresh_parameters();
    arrange(loads_, needs_.lane(TierLane::Load), place_of_load_);
    wait_for_copies();
    return std::move(needs_);
  }

 private:
  /// The passes of a part.
  struct Span {
    std::size_t first_forward = none;
    std::size_t first_backward = none;
    std::size_t last_backward = 0;
    std::size_t gradient_store = none;
    std::size_t update = none;  // its place among the updates
    std::size_t refresh = none;
    std::size_t last_load = none;  // of its parameters
  };

  bool ends_in_step() const { return overlap_ == UpdateOverlap::None || overlap_ == UpdateOverlap::Step; }
  bool waits_for_facts() const { return needs_facts_ && copies_ != Copies::Redundant; }
  bool is_updated_by_machine(std::size_t part) const { return parts_[part].residence.optimizer != Tier::Device; }

  void find_stays()
  {
    std::vector<std::size_t> last(parts_.size(), none);
    for (std::size_t i = 0; i < passes_.size(); ++i) {
      const std::size_t part = passes_[i].part;
      const bool is_forward = passes_[i].opcode == Opcode::Forward;
      Span& span = spans_[part];
      if (is_forward) {
        span.first_forward = std::min(span.first_forward, i);
      } else {
        span.first_backward = std::min(span.first_backward, i);
        last_backward_ = span.last_backward = i;
      }
      if (parts_[part].residence.parameters == Tier::Device) continue;
      if (!stays_.empty() && stays_.back().part == part && stays_.back().is_forward == is_forward &&
          stays_.back().last + 1 == i) {
        stays_.back().last = i;
        continue;
      }
      if (last[part] != none) stays_[last[part]].next = stays_.size();
      last[part] = stays_.size();
      Stay& stay = stays_.emplace_back();
      stay.part = part;
      stay.is_forward = is_forward;
      stay.first = stay.last = i;
    }
  }

  /// The place that parameters take that come in: an empty one, else one with parameters that are not needed again,
  /// those used first, else those that are needed last.
  std::size_t chosen_place(const std::vector<std::size_t>& stay_in) const
  {
    const auto order = [&](std::size_t place) {
      const std::size_t stay = stay_in[place];
      if (stay == none) return std::tuple<int, std::size_t>(0, place);
      if (stays_[stay].next == none) return std::tuple<int, std::size_t>(1, stay);
      return std::tuple<int, std::size_t>(2, none - stays_[stay].next);
    };
    std::size_t chosen = 0;
    for (std::size_t place = 1; place < stay_in.size(); ++place) {
      if (order(place) < order(chosen)) chosen = place;
    }
    return chosen;
  }

  void fill_places()
  {
    std::vector<std::size_t> stay_in(parameter_slots_, none);  // the last stay of what is in a place
    std::vector<std::size_t> place_of(parts_.size(), none);
    std::vector<std::size_t> place_of_stay(stays_.size(), none);
    for (std::size_t i = 0; i < stays_.size(); ++i) {
      Stay& stay = stays_[i];
      std::size_t place = place_of[stay.part];
      if (place == none) {
        place = chosen_place(stay_in);
        stay.load = i;
        stay.before = stay_in[place];
        stay.is_first_there = stay.before == none;
        if (stay.before != none) {
          place_of[stays_[stay.before].part] = none;
          leaving_.push_back(stay.before);
        }
        place_of[stay.part] = place;
      } else {
        stay.load = stays_[stay_in[place]].load;
      }
      stay_in[place] = i;
      place_of_stay[i] = place;
    }
    for (const std::size_t stay : stay_in) {
      if (stay != none) leaving_.push_back(stay);
    }
    for (std::size_t i = 0; i < stays_.size(); ++i) {
      if (stays_[i].is_first_there) stays_[i].before = stay_in[place_of_stay[i]];
    }
  }

  std::size_t add(std::vector<Copy>& copies, std::size_t position, int rank, TierTask task)
  {
    copies.push_back({position, rank, std::move(task)});
    return copies.size() - 1;
  }

  void store_parameters()
  {
    if (copies_ == Copies::Lean) return;
    for (const std::size_t number : leaving_) {
      const Stay& stay = stays_[number];
      const TierTask task{parts_[stay.part].own_parameters, false, {{TierLane::Pass, stay.last}}};
      store_of_stay_[number] = add(stores_, stay.last, 0, task);
    }
  }

  void store_gradients()
  {
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      if (is_updated_by_machine(part)) updated_.push_back(part);
    }
    const auto by_last = [&](std::size_t a, std::size_t b) {
      return spans_[a].last_backward < spans_[b].last_backward;
    };
    std::sort(updated_.begin(), updated_.end(), by_last);
    for (const std::size_t part : updated_) {
      const bool leaves_early = parts_[part].residence.gradients == Tier::Host;
      const std::size_t after = leaves_early ? spans_[part].last_backward : last_backward_;
      const TierWait wait = parts_[part].is_summed ? TierWait{TierLane::Sum, part} : TierWait{TierLane::Pass, after};
      spans_[part].gradient_store = add(stores_, after, 1, {parts_[part].gradients, false, {wait}});
    }
  }

  /// Activations leave after a forward, and come back during the task before their backward.
  void move_activations()
  {
    std::vector<std::size_t> stored;
    std::map<std::pair<std::size_t, std::uint64_t>, std::size_t> store_of;
    for (std::size_t i = 0; i < passes_.size(); ++i) {
      const MovedPart& part = parts_[passes_[i].part];
      if (part.residence.activations != Tier::Host || passes_[i].opcode == Opcode::BackwardWeight) continue;
      const std::pair key(passes_[i].part, passes_[i].microbatch);
      if (passes_[i].opcode == Opcode::Forward) {
        if (stored.size() >= most_kept_forwards) {
          waits_for_stores_.emplace_back(i, stored[stored.size() - most_kept_forwards]);
        }
        stored.push_back(add(stores_, i, 2, {part.activations, false, {{TierLane::Pass, i}}}));
        store_of[key] = stored.back();
        continue;
      }
      TierTask load{part.activations, false, {{TierLane::Store, store_of.at(key)}}};
      if (i >= 2) load.waits.push_back({TierLane::Pass, i - 2});
      waits_for_loads_.emplace_back(i, add(loads_, i, 1, std::move(load)));
      loads_after_stores_.push_back(loads_.size() - 1);
    }
  }

  static void arrange(std::vector<Copy>& copies, std::vector<TierTask>& lane, std::vector<std::size_t>& place)
  {
    std::vector<std::size_t> order(copies.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::tie(copies[a].position, copies[a].rank) < std::tie(copies[b].position, copies[b].rank);
    });
    place.resize(copies.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      place[order[i]] = i;
      lane.push_back(std::move(copies[order[i]].task));
    }
  }

  std::size_t arrived(std::size_t part) const { return place_of_store_[spans_[part].gradient_store]; }

  /// The machine updates in the order in which gradients leave the device.
  void update()
  {
    std::sort(updated_.begin(), updated_.end(), [&](std::size_t a, std::size_t b) { return arrived(a) < arrived(b); });
    const std::size_t count = updated_.size();
    const std::size_t back = overlap_ == UpdateOverlap::Delayed ? 1 : 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t part = updated_[i];
      spans_[part].update = i;
      TierTask task{parts_[part].update, false, {}};
      const std::size_t last = overlap_ == UpdateOverlap::None ? arrived(updated_.back()) : arrived(part);
      task.waits.push_back({TierLane::Store, last, back});
      if (waits_for_facts()) {
        task.waits.push_back(has_facts_ ? TierWait{TierLane::Facts, 0, back}
                                        : TierWait{TierLane::Pass, last_backward_, back});
      }
      needs_.lane(TierLane::Update).push_back(std::move(task));
      needs_.lane(TierLane::Store)[arrived(part)].waits.push_back(place_on_host(i));
    }
    use_disk();
  }

  /// What a gradient that leaves waits for: the update that frees its place on the host.
  TierWait place_on_host(std::size_t number) const
  {
    const std::size_t count = updated_.size();
    const bool has_all = overlap_ == UpdateOverlap::None || waits_for_facts() || overlap_ == UpdateOverlap::Delayed;
    const std::size_t places = has_all ? count : std::min(count, most_waiting_gradients);
    if (overlap_ == UpdateOverlap::Delayed) return {TierLane::Update, number};
    if (number >= places) return {TierLane::Update, number - places};
    return {TierLane::Update, number + count - places, 1};
  }

  /// States of the optimizer on the disk are read before their update and written after it.
  void use_disk()
  {
    std::vector<std::size_t> on_disk;
    for (const std::size_t part : updated_) {
      if (parts_[part].residence.optimizer == Tier::Disk) on_disk.push_back(part);
    }
    for (std::size_t i = 0; i < on_disk.size(); ++i) {
      const MovedPart& part = parts_[on_disk[i]];
      const std::size_t update = spans_[on_disk[i]].update;
      TierWait freed{TierLane::Write, i - most_staged_states};
      if (i < most_staged_states) {
        const std::size_t all = i + on_disk.size();
        freed = {TierLane::Write, std::max(i, all < most_staged_states ? 0 : all - most_staged_states), 1};
      }
      needs_.lane(TierLane::Read).push_back({part.optimizer, false, {freed}});
      needs_.lane(TierLane::Update)[update].waits.push_back({TierLane::Read, i});
      needs_.lane(TierLane::Write).push_back({part.optimizer, false, {{TierLane::Update, update}}});
    }
  }

  void load_parameters()
  {
    for (std::size_t i = 0; i < stays_.size(); ++i) {
      Stay& stay = stays_[i];
      if (stay.load != i) {
        stay.load = stays_[stay.load].load;
      } else {
        TierTask task{parts_[stay.part].parameters, !stay.is_forward, {}};
        const std::size_t back = stay.is_first_there ? 1 : 0;
        const auto stored = store_of_stay_.find(stay.before);
        if (stored != store_of_stay_.end()) {
          task.waits.push_back({TierLane::Store, place_of_store_[stored->second], back});
        } else {
          task.waits.push_back({TierLane::Pass, stays_[stay.before].last, back});
        }
        const std::size_t update = ends_in_step() ? updated_.size() - 1 : spans_[stay.part].update;
        task.waits.push_back({TierLane::Update, update, 1});
        stay.load = add(loads_, stay.first, 0, std::move(task));
      }
      waits_for_loads_.emplace_back(stay.first, stay.load);
      spans_[stay.part].last_load = stay.load;
    }
  }

  /// Parameters that are on the device come there again when the machine has updated its own.
  void refresh_parameters()
  {
    for (const std::size_t part : updated_) {
      if (parts_[part].residence.parameters != Tier::Device) continue;
      TierTask task{parts_[part].own_parameters, false, {}};
      task.waits = {{TierLane::Update, spans_[part].update}, {TierLane::Pass, spans_[part].last_backward}};
      spans_[part].refresh = add(loads_, passes_.size(), 0, std::move(task));
    }
  }

  void wait_for_copies()
  {
    for (const std::size_t load : loads_after_stores_) {
      TierWait& wait = needs_.lane(TierLane::Load)[place_of_load_[load]].waits.front();
      wait.index = place_of_store_[wait.index];
    }
    auto& waits = needs_.waits_of_passes;
    for (const auto& [position, store] : waits_for_stores_) {
      waits.emplace_back(position, TierWait{TierLane::Store, place_of_store_[store]});
    }
    for (const auto& [position, load] : waits_for_loads_) {
      waits.emplace_back(position, TierWait{TierLane::Load, place_of_load_[load]});
    }
    if (updated_.empty()) return;
    if (ends_in_step()) waits.emplace_back(0, TierWait{TierLane::Update, updated_.size() - 1, 1});
    for (const std::size_t part : updated_) {
      const Span& span = spans_[part];
      if (span.refresh != none) {
        waits.emplace_back(span.first_forward, TierWait{TierLane::Load, place_of_load_[span.refresh], 1});
      }
      // Gradients that stay until the end of a step leave before those of the next one come.
      if (parts_[part].residence.gradients == Tier::Device) {
        waits.emplace_back(span.first_backward, TierWait{TierLane::Store, arrived(part), 1});
      }
      // An update must not change parameters that a backward of the step still loads.
      if (overlap_ == UpdateOverlap::Delayed && span.last_load != none) {
        needs_.lane(TierLane::Update)[span.update].waits.push_back({TierLane::Load, place_of_load_[span.last_load]});
      }
    }
    take_gradient_places();
  }

  /// The first backward of a part takes the place of gradients that have left, or that the machine has used where
  /// copies are redundant.
  void take_gradient_places()
  {
    std::vector<std::size_t> by_first;
    for (const std::size_t part : updated_) {
      if (parts_[part].residence.gradients == Tier::Host) by_first.push_back(part);
    }
    std::vector<std::size_t> by_last = by_first;
    std::sort(by_first.begin(), by_first.end(),
              [&](std::size_t a, std::size_t b) { return spans_[a].first_backward < spans_[b].first_backward; });
    std::sort(by_last.begin(), by_last.end(),
              [&](std::size_t a, std::size_t b) { return spans_[a].last_backward < spans_[b].last_backward; });
    const std::size_t places = std::min(gradient_slots_, by_first.size());
    for (std::size_t i = 0; i < by_first.size(); ++i) {
      // Of the first ones, the last that had the place in the step before.
      const std::size_t back = i < places ? 1 : 0;
      const std::size_t before = back == 1 ? i + (by_first.size() - 1 - i) / places * places : i - places;
      const Span& freed = spans_[by_last[before]];
      const TierWait wait = copies_ == Copies::Redundant
                                ? TierWait{TierLane::Update, freed.update, back}
                                : TierWait{TierLane::Store, place_of_store_[freed.gradient_store], back};
      needs_.waits_of_passes.emplace_back(spans_[by_first[i]].first_backward, wait);
    }
  }

  const std::vector<PartPass>& passes_;
  const std::vector<MovedPart>& parts_;
  const bool needs_facts_;
  const bool has_facts_;
  // What all parts of the device share:
  std::size_t parameter_slots_ = 0;
  std::size_t gradient_slots_ = 0;
  Copies copies_ = Copies::Lean;
  UpdateOverlap overlap_ = UpdateOverlap::Step;
  std::vector<Span> spans_;  // by part
  std::size_t last_backward_ = 0;
  std::vector<Stay> stays_;
  std::vector<std::size_t> leaving_;                  // stays after which parameters leave, in this order
  std::map<std::size_t, std::size_t> store_of_stay_;  // of its parameters
  std::vector<std::size_t> updated_;                  // parts that the machine updates, in its order
  std::vector<Copy> loads_, stores_;
  std::vector<std::size_t> place_of_load_, place_of_store_;
  std::vector<std::size_t> loads_after_stores_;  // those of activations, whose first wait is for a store by number
  std::vector<std::pair<std::size_t, std::size_t>> waits_for_loads_;   // of passes, by number of the load
  std::vector<std::pair<std::size_t, std::size_t>> waits_for_stores_;  // likewise
  TierNeeds needs_;
};

}  // namespace

TierNeeds tier_needs(const std::vector<PartPass>& passes, const std::vector<MovedPart>& parts, bool needs_facts,
                     bool has_facts)
{
  return TierPlanner(passes, parts, needs_facts, has_facts).needs();
}

}  // namespace isobar
