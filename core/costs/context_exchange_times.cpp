#include "core/costs/context_exchange_times.hpp"

#include "core/costs/nominal_rates.hpp"
#include "core/plan/context_plan.hpp"
#include "core/program/collective.hpp"
#include "core/program/round_time.hpp"

#include <string>
#include <vector>

namespace isobar {

ContextExchangeTimes context_exchange_times(const Plan& plan, std::size_t stage, std::size_t layer,
                                            const Workload& workload, const Cluster& cluster)
{
  ContextExchangeTimes times;
  const ContextParallelism& context = workload.context;
  if (!context.divides()) return times;
  const auto& replicas = plan.stages.at(stage).replicas;
  const std::size_t shards = replicas.front().shards.size();
  std::vector<std::size_t> endpoints;  // by replica and shard
  std::vector<std::string> sites;      // of the first shards; the others lie alike
  for (std::size_t part = 0; part < context.degree; ++part) {
    for (const auto& shard : replicas.at(part).shards) {
      endpoints.push_back(cluster.device_index(shard.device).value());
    }
    sites.push_back(replicas[part].shards.front().site.value_or(""));
  }
  const EndNetwork whole = network_of(cluster);
  const EndNetwork network = network_between(endpoints, whole);
  const Algorithm algorithm = algorithm_of_context(context, plan.sync.algorithm, sites);
  for (const auto& collective : context_collectives(workload, layer, shards)) {
    const std::vector<Bytes> sizes(context.degree, collective.size);
    std::vector<Round> rounds;
    for (const Round& round : rounds_of(collective.opcode, sizes, algorithm, sites)) {
      Round& of_all = rounds.emplace_back();  // shards, beside each other
      for (std::size_t shard = 0; shard < shards; ++shard) {
        for (Flow flow : round) {
          flow.from = flow.from * shards + shard;
          flow.to = flow.to * shards + shard;
          of_all.push_back(flow);
        }
      }
    }
    Seconds& time = pass_of(collective.role) == ShardPass::Forward ? times.forward : times.backward;
    time += collective_time(rounds, network);
  }
  return times;
}

}  // namespace isobar
