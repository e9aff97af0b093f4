#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "tests/exec/run/even_split.hpp"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

/// Plans whose stages live elsewhere than on their devices.
namespace isobar::exec {

/// Where the layers of a plan live, as an allocator places them.
struct System {
  std::string name;
  Residence inner;           ///< of layers that are neither at an end of the model nor resident
  Residence ends;            ///< of the first and the last layer
  std::size_t resident = 0;  ///< layers after the first that live on the device
};

/// All is on the machine but what passes: so many parameters, and as many gradients, at a time.
inline Residence passing(std::size_t places, UpdateOverlap overlap, Tier optimizer = Tier::Host)
{
  Residence residence;
  residence.parameters = residence.gradients = Tier::Host;
  residence.optimizer = optimizer;
  residence.parameter_slots = residence.gradient_slots = places;
  residence.overlap = overlap;
  return residence;
}

inline System window(UpdateOverlap overlap, std::size_t resident, std::size_t places, Tier optimizer = Tier::Host)
{
  return {"window " + std::string(name_of(overlap)) + (optimizer == Tier::Disk ? " with a disk" : ""),
          passing(places, overlap, optimizer),
          {},
          resident};
}

inline System zero_offload()
{
  Residence residence;
  residence.gradients = residence.optimizer = Tier::Host;
  residence.gradient_slots = 1;
  residence.overlap = UpdateOverlap::None;
  return {"zero-offload", residence, residence, 0};
}

inline System zero_infinity(Tier optimizer = Tier::Host)
{
  const Residence residence = passing(1, UpdateOverlap::None, optimizer);
  return {std::string("zero-infinity") + (optimizer == Tier::Disk ? " with a disk" : ""), residence, residence, 0};
}

inline System l2l()
{
  Residence ends;
  ends.optimizer = Tier::Host;
  ends.overlap = UpdateOverlap::None;
  Residence inner = ends;
  inner.parameters = Tier::Host;
  inner.parameter_slots = 1;
  inner.copies = Copies::WriteBack;
  return {"l2l", inner, ends, 0};
}

inline System published_stronghold()
{
  System system = {"stronghold-published", passing(1, UpdateOverlap::Step), {}, 1};
  system.inner.gradient_slots = 2;
  system.inner.copies = Copies::Redundant;
  return system;
}

/// A part for each layer, on devices in turn as even_split has them. All layers but the first and the last are
/// recomputed.
inline Plan machine_plan(const Workload& workload, const System& system, std::size_t devices,
                         const ScheduleChoice& schedule, std::uint64_t microbatches)
{
  const Plan whole = even_split(workload, devices, schedule, microbatches);
  Plan plan = whole;
  plan.stages.clear();
  for (const auto& stage : whole.stages) {
    for (std::size_t layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
      plan.stages.push_back(stage_on(stage.device(), layer, layer));
      const bool is_at_an_end = layer == 0 || layer + 1 == workload.layers.size();
      Residence& residence = plan.stages.back().residence;
      residence = is_at_an_end ? system.ends : system.inner;
      if (!is_at_an_end && layer <= system.resident) residence = {};
    }
  }
  plan.recompute.resize(workload.layers.size() - 2);
  std::iota(plan.recompute.begin(), plan.recompute.end(), 1);
  return plan;
}

/// The same pipeline with everything on its devices.
inline Plan resident_plan(const Workload& workload, std::size_t devices, const ScheduleChoice& schedule,
                          std::uint64_t microbatches)
{
  Plan plan = even_split(workload, devices, schedule, microbatches);
  plan.recompute.resize(workload.layers.size() - 2);
  std::iota(plan.recompute.begin(), plan.recompute.end(), 1);
  return plan;
}

}  // namespace isobar::exec
