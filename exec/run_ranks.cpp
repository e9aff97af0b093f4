#include "exec/run_ranks.hpp"

#include "core/base/standard_streams.hpp"
#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"
#include "exec/launch/rendezvous.hpp"
#include "exec/links/network_options.hpp"
#include "exec/net/address.hpp"
#include "exec/run/rank_facts.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

namespace isobar::exec {

std::optional<LaunchPlace> launched_place(const RunCommandOptions& options)
{
  if (options.spawn || options.in_process || !options.ranks.empty()) return std::nullopt;
  const LaunchFlags flags = {.rank = options.rank, .world = options.launch.world, .master = options.launch.master};
  auto place = launch_place(environment_of_this_process(), flags);
  if (!place) throw InputError(places_of_ranks);
  say(fmt::format("rank {} of {} by {}; rank 0 listens at {}", place->rank, place->world_size,
                  shown(place->source, 200), text_of(place->master)));
  return place;
}

RankPlace meet_others(const LaunchPlace& place, const RunCommandOptions& options, const Plan& plan,
                      const Workload& workload, const std::string& workload_hash)
{
  refuse_open_bind(options.run.network, place.master.host, "the master", "--master");
  const auto secret = secret_of(options.run.network);  // changes the environment, so before torch starts threads
  RankFacts facts = facts_of_device(options.run.device, options.run.threads);
  facts.host = place.node.empty() ? host_name() : place.node;
  facts.plan_device = options.launch.plan_device;
  facts.version = ISOBAR_VERSION;
  facts.plan_hash = hash_of(plan);
  facts.workload_hash = workload_hash;
  facts.data_hash = nlohmann::json::parse(options.run.checkpoints.run).value("data", "");
  facts.settings = options.run.settings;
  facts.first_step = options.run.first_step;
  Meeting meeting = meet({.rank = place.rank,
                          .ranks = place.world_size,
                          .master = place.master,
                          .master_advice = place.master_advice,
                          .missing_advice = place.missing_advice,
                          .secret = secret,
                          .tls = uses_tls(options.run.network, {place.master}),
                          .bind = options.run.network.bind,
                          .deadline = options.run.limits.connect},
                         facts, preflight_of(plan, workload.dtype, options.launch, options.run.emulate));
  std::fputs(meeting.summary.c_str(), stderr);
  return {meeting.device, std::move(meeting.endpoints), secret, std::move(meeting.listener)};
}

RankPlace listed_place(const RunCommandOptions& options, const Program& program)
{
  if (*options.rank >= program.ranks()) {
    throw InputError("--rank", fmt::format("{} is not below the plan's {} ranks", *options.rank, program.ranks()));
  }
  std::vector<Endpoint> endpoints;
  for (const auto& endpoint : options.ranks) {
    if (std::count(options.ranks.begin(), options.ranks.end(), endpoint) > 1) {
      throw InputError("--ranks", in_quotes(endpoint) + " is listed twice; give each rank an address of its own");
    }
    endpoints.push_back(endpoint_from_text("--ranks", endpoint));
  }
  if (endpoints.size() != program.ranks()) {
    throw InputError("--ranks", fmt::format("lists {}; the plan has {}", counted(endpoints.size(), "address", "es"),
                                            counted(program.ranks(), "rank")));
  }
  return {*options.rank, std::move(endpoints), secret_of(options.run.network)};
}

}  // namespace isobar::exec
