#pragma once

#include <simgrid/kernel/Timer.hpp>
#include <simgrid/kernel/resource/Action.hpp>
#include <simgrid/kernel/resource/Model.hpp>
#include <simgrid/kernel/routing/NetZoneImpl.hpp>
#include <simgrid/s4u.hpp>

#include <simgrid/version.h>  // needs the headers above

#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

/// What differs between SimGrid 3.32 (Debian 12) and 4.x. The rest of sim/ compiles against both.
namespace isobar::sim {

namespace sg4 = simgrid::s4u;

/// The host model that takes the CPU and network models which are set.
#if SIMGRID_VERSION >= 33400
inline constexpr const char* host_model = "default";
inline constexpr const char* timing_precision_option = "precision/timing";
inline constexpr const char* work_precision_option = "precision/work-amount";
#else
inline constexpr const char* host_model = "compound";  // "default" would choose the network model
inline constexpr const char* timing_precision_option = "surf/precision";
inline constexpr const char* work_precision_option = "maxmin/precision";
#endif

/// TCP window (gamma) of the flows that start: their rate is at most window / (2 x latency). 0: no limit.
inline constexpr const char* window_option = "network/TCP-gamma";

/// Whether SimGrid bounds a flow for its whole life by the bandwidth at its start. SimGrid 3.32 does not if the window
/// is 0 and the latency is not: the resulting bound of 0 means none (read in NetworkCm02Model of 3.32 and 4.1).
inline bool bound_is_fixed_at_start(double latency_s)
{
  return SIMGRID_VERSION >= 33400 || latency_s <= 0;
}

/// Whether SimGrid finds routes from a gateway in a zone inside another one to hosts elsewhere in the outer zone. 4.1
/// asks the inner zone for them, and dies or takes wrong links; versions between were not tried.
inline constexpr bool routes_from_inner_gateways = SIMGRID_VERSION < 33400;

/// Calls `completed` at the end of each Exec, Comm and Io.
inline void on_activity_completion(const std::function<void(const sg4::Activity&)>& completed)
{
#if SIMGRID_VERSION >= 33400
  sg4::Exec::on_completion_cb(completed);
  sg4::Comm::on_completion_cb(completed);
  sg4::Io::on_completion_cb(completed);
#else
  sg4::Activity::on_completion_cb(completed);
#endif
}

/// Calls `switched` when a link is turned on or off.
inline void on_link_switch(const std::function<void(const sg4::Link&)>& switched)
{
#if SIMGRID_VERSION >= 33400
  sg4::Link::on_onoff_cb(switched);
#else
  sg4::Link::on_state_change_cb(switched);
#endif
}

/// Calls `switched` when a host is turned on or off.
inline void on_host_switch(const std::function<void(const sg4::Host&)>& switched)
{
#if SIMGRID_VERSION >= 33400
  sg4::Host::on_onoff_cb(switched);
#else
  sg4::Host::on_state_change_cb(switched);
#endif
}

using Timer = simgrid::kernel::timer::Timer;

/// Calls `work` once, outside of any actor, when SimGrid's clock reaches `date_s`. SimGrid then deletes the timer. One
/// that is pending when the process exits crashes it (3.32): remove it with Timer::remove.
template <typename Work>
Timer* call_at(double date_s, Work work)
{
  return Timer::set(date_s, std::move(work));
}

/// Starts an activity without an actor; a Comm by start_flow. Keep a reference until it has completed.
template <typename ActivityPtr>
void start_activity(const ActivityPtr& activity)
{
#if SIMGRID_VERSION >= 33400
  activity->start();
#else
  activity->vetoable_start();
#endif
}

using NetworkModel = simgrid::kernel::resource::Model;

/// SimGrid's model of the network CM02, which sim/platform/network_settings.cpp chooses. Load a platform before.
inline NetworkModel& network_model()
{
  for (auto* model : sg4::Engine::get_instance()->get_all_models()) {
    if (model->get_name() == "Network_CM02") return *model;
  }
  throw std::logic_error("SimGrid has no network model CM02");
}

/// Starts a flow without an actor, with the weight 1 / latency, or 1 without one, of its route at this moment. SimGrid
/// sets this weight after the latency, which is not counted here. Of two flows over one first link that do so at the
/// same time, its lazy solver shares only the links of one (findings/simgrid_lazy_flow_exceeds_its_link.sh). Keep a
/// reference until the flow has completed. All links of the route must be on.
inline void start_flow(NetworkModel& network, sg4::Comm& comm, double latency_s)
{
  start_activity(&comm);
  if (latency_s > 0) network.get_started_action_set()->back().set_sharing_penalty(latency_s);
}

/// The links of a zone and of all zones in it, including those that SimGrid creates for a <cluster> or a <peer>.
inline std::vector<sg4::Link*> links_within(const sg4::NetZone& zone)
{
  return zone.get_impl()->get_filtered_links([](const sg4::Link*) { return true; });
}

}  // namespace isobar::sim
