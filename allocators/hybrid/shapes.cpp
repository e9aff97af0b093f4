#include "allocators/hybrid/shapes.hpp"

#include "allocators/planners/grid_stages.hpp"
#include "allocators/schedule_numbers.hpp"
#include "core/costs/layer_times.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/shard_collectives.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

namespace isobar::allocators {

namespace {

/// The workload as each of `shards` shards computes and holds it; none if they cannot divide it.
std::optional<Workload> workload_of_shard(const Workload& workload, std::size_t shards)
{
  Workload part = workload;
  Replica replica;
  replica.shards.assign(shards, Shard{"", 1 / static_cast<double>(shards)});
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    if (!workload.layers[i].split || workload.layers[i].split->units < shards) return std::nullopt;
    const Stage stage{i, i, {replica}};
    part.layers[i] = layer_of_shard(workload.layers[i], stage, 0, 0);
    for (auto& [type, own] : part.times) own[i] = times_of_shard(own[i], workload.layers[i], stage, 0, 0);
  }
  return part;
}

/// A collective in a ring of `ends` ends in which each sends `size` in all.
Seconds ring_time(std::size_t ends, double messages, Bytes size, const Path& path, Seconds start)
{
  return ends < 2 ? Seconds(0) : start + messages * path.latency + size / path.bandwidth;
}

/// The least that a device adds to the time of a collective.
Seconds least_collective_start(const Cluster& cluster)
{
  Seconds least = cluster.devices.front().collective_start;
  for (const auto& device : cluster.devices) least = std::min(least, device.collective_start);
  return least;
}

/// The times in which shards add up what the layers make of a micro-batch, there and back, as prefix sums.
std::vector<Seconds> sums_of_shards(const CostModel& cost, std::size_t shards, const Path& path)
{
  const auto all = static_cast<double>(shards);
  const auto others = static_cast<double>(shards - 1);
  const Seconds start = least_collective_start(cost.cluster());
  std::vector<Seconds> sums = {Seconds(0)};
  for (std::size_t layer = 0; layer < cost.layers(); ++layer) {
    const auto gathered = cost.workload().layers[layer].split->gathered;
    const Bytes output = gathered ? others * *gathered : 2 * others / all * cost.boundary_output(layer + 1);
    Seconds sum = ring_time(shards, gathered ? others : 2 * others, output, path, start);
    if (layer > 0) sum += ring_time(shards, 2 * others, 2 * others / all * cost.boundary_gradient(layer), path, start);
    sums.push_back(sums.back() + sum);
  }
  return sums;
}

bool is_same(const Path& a, const Path& b)
{
  return a.latency == b.latency && a.bandwidth == b.bandwidth;
}

/// Whether two devices have the same paths to all endpoints.
bool have_same_paths(const Cluster& cluster, std::size_t a, std::size_t b)
{
  const std::size_t endpoints = cluster.devices.size() + (cluster.data_server ? 1 : 0);
  for (std::size_t other = 0; other < endpoints; ++other) {
    if (other == a || other == b) continue;
    if (!is_same(cluster.path(a, other), cluster.path(b, other))) return false;
    if (!is_same(cluster.path(other, a), cluster.path(other, b))) return false;
  }
  return is_same(cluster.path(a, b), cluster.path(b, a));
}

/// The length of the run of devices after the first one, with it, to which its path is the best.
std::size_t node_of(const Cluster& cluster, const std::vector<std::size_t>& devices)
{
  if (devices.size() < 3) return devices.size();
  const Path nearest = cluster.path(devices[0], devices[1]);
  std::size_t end = 2;
  while (end < devices.size() && is_same(cluster.path(devices[0], devices[end]), nearest)) ++end;
  if (end == devices.size()) return end;
  const Path next = cluster.path(devices[0], devices[end]);
  const bool is_better = nearest.bandwidth >= next.bandwidth && nearest.latency <= next.latency;
  return is_better ? end : 1;
}

/// The first layers of all stages, ascending.
std::vector<std::size_t> cuts_of(const std::vector<Shape>& shapes)
{
  std::vector<std::size_t> cuts;
  for (const auto& shape : shapes) {
    for (const auto& stage : shape.stages) cuts.push_back(stage.first_layer);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

}  // namespace

std::vector<DeviceKind> kinds_of(const CostModel& cost)
{
  const Cluster& cluster = cost.cluster();
  std::vector<DeviceKind> kinds;
  for (std::size_t device = 0; device < cluster.devices.size(); ++device) {
    const Device& own = cluster.devices[device];
    const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const DeviceKind& known) {
      const std::size_t first = known.devices.front();
      const Device& other = cluster.devices[first];
      return other.type == own.type && other.site == own.site && other.memory == own.memory &&
             cost.computes_like(first, device) && (!own.site.empty() || have_same_paths(cluster, first, device));
    });
    if (kind == kinds.end()) {
      kinds.push_back({{device}});
    } else {
      kind->devices.push_back(device);
    }
  }
  for (auto& kind : kinds) kind.node = node_of(cluster, kind.devices);
  return kinds;
}

std::size_t copies_of(const std::vector<Shape>& shapes)
{
  std::size_t copies = 0;
  for (const auto& shape : shapes) copies += shape.copies;
  return copies;
}

ShapeCosts::ShapeCosts(const HybridProblem& problem, std::size_t most_tensor, Links links)
    : problem_(problem),
      links_(links),
      bytes_(parameter_bytes(problem.workload)),
      schedule_(chain_schedule(problem.goal.schedule)),
      keeps_few_(schedule_ != ChainSchedule::GPipe && !chooses_warm_up(problem.goal)),
      kinds_(kinds_of(CostModel(problem.view.workload, problem.cluster)))
{
  const auto& layers = problem.view.workload.layers;
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    if (layers[layer].tied_to) ties_.push_back({layer, *layers[layer].tied_to});
  }
  std::map<std::string, std::size_t> sites;
  for (const auto& from : kinds_) {
    for (const auto& to : kinds_) paths_.push_back(path_between(from, to));
    const Path beyond = paths_[paths_.size() - kinds_.size() + inside_nodes_.size()].alone;
    inside_nodes_.push_back(from.node > 1 ? problem.cluster.path(from.devices[0], from.devices[1]) : beyond);
    const Device& device = problem.cluster.devices[from.devices.front()];
    sites_.push_back(sites.emplace(device.site, sites.size()).first->second);
  }
  add_part(1, problem.view.workload, nullptr);
  for (const auto& kind : kinds_) {
    const bool is_free = problem.goal.has_free_transfers();
    inputs_.push_back(is_free ? TransferTimes() : cost().input_transfer(kind.devices.front()));
  }
  const bool has_all_cuts = problem.view.workload.layers.size() == problem.workload.layers.size();
  for (std::size_t shards = 2; shards <= most_tensor && has_all_cuts; shards *= 2) {
    auto part = workload_of_shard(problem.workload, shards);
    if (!part) break;
    auto own = std::make_unique<Workload>(std::move(*part));
    const Workload& kept = *own;
    add_part(shards, kept, std::move(own));
  }
}

void ShapeCosts::add_part(std::size_t shards, const Workload& workload, std::unique_ptr<Workload> own)
{
  std::vector<double> parameters = {0};
  for (const auto& layer : workload.layers) {
    parameters.push_back(parameters.back() + static_cast<double>(layer.parameters));
  }
  Part part{std::move(own), CostModel(workload, problem_.cluster), std::move(parameters), {}};
  for (const Path& path : inside_nodes_) {
    part.sums.push_back(shards == 1 ? std::vector<Seconds>(workload.layers.size() + 1)
                                    : sums_of_shards(cost(), shards, path));
  }
  parts_.push_back(std::move(part));
}

std::vector<std::size_t> ShapeCosts::tensors() const
{
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < parts_.size(); ++i) numbers.push_back(std::size_t{1} << i);
  return numbers;
}

ShapeCosts::KindPath ShapeCosts::path_between(const DeviceKind& from, const DeviceKind& to) const
{
  const std::size_t first = from.devices.front();
  // Within a kind the path to another node, since neighbours may be at its end.
  const std::size_t last = &from == &to ? to.devices.back() : to.devices.front();
  if (first == last) return {{Seconds(0), BytesPerSecond(std::numeric_limits<double>::infinity())}, {}};
  const Cluster& cluster = problem_.cluster;
  KindPath result{cluster.path(first, last), {}};
  if (links_ == Links::Alone) return result;
  // How many of the devices have a link on their path, from a sample.
  const auto users_of = [](const std::vector<std::size_t>& devices, std::size_t except, auto&& links_of) {
    constexpr std::size_t most_samples = 16;
    const std::size_t step = (devices.size() + most_samples - 1) / most_samples;
    std::map<std::string, double> users;
    double paths = 0;
    for (std::size_t i = 0; i < devices.size(); i += step) {
      if (devices[i] == except) continue;
      ++paths;
      for (const auto& link : links_of(devices[i])) ++users[link];
    }
    const bool is_inside = std::find(devices.begin(), devices.end(), except) != devices.end();
    const auto all = static_cast<double>(devices.size() - (is_inside ? 1 : 0));
    for (auto& [link, number] : users) number *= all / paths;
    return users;
  };
  const Network& network = *cluster.network;
  auto senders = users_of(from.devices, last, [&](std::size_t other) { return network.links(other, last); });
  auto receivers = users_of(to.devices, first, [&](std::size_t other) { return network.links(first, other); });
  constexpr double narrow = 1e-9;  // so that the link is the narrowest of the path
  for (const auto& link : network.links(first, last)) {
    const BytesPerSecond bandwidth = network.path_with(first, last, link, narrow).bandwidth / narrow;
    result.links.push_back({bandwidth, std::min(senders[link], receivers[link])});
  }
  return result;
}

Path ShapeCosts::path(std::size_t from_kind, std::size_t to_kind, std::size_t transfers) const
{
  const KindPath& between = paths_[from_kind * kinds_.size() + to_kind];
  Path path = between.alone;
  for (const auto& link : between.links) {
    const double users = std::clamp(static_cast<double>(transfers), 1.0, std::max(1.0, link.users));
    path.bandwidth = std::min(path.bandwidth, link.bandwidth / users);
  }
  return path;
}

Seconds ShapeCosts::compute_time(const ShapeStage& stage) const
{
  const std::size_t device = kinds_[stage.kind].devices.front();
  const Part& of = part(stage.tensor);
  return of.cost.compute_time(device, stage.first_layer, stage.last_layer) +
         (of.sums[stage.kind][stage.last_layer + 1] - of.sums[stage.kind][stage.first_layer]);
}

std::uint64_t ShapeCosts::in_flight(std::size_t stages_behind) const
{
  const auto schedule = schedule_.value_or(ChainSchedule::OneForwardOneBackward);
  return microbatches_in_flight(schedule, stages_behind, problem_.goal.microbatches);
}

Bytes ShapeCosts::need(const ShapeStage& stage, std::size_t stages_behind, std::size_t replicas) const
{
  const Part& of = part(stage.tensor);
  Bytes need = of.cost.memory(stage.first_layer, stage.last_layer, in_flight(stages_behind));
  if (of.cost.memory_ignores_schedule()) return need;
  const double parameters = of.cost.parameters(stage.first_layer, stage.last_layer);
  return need - Bytes(parameters * (bytes_.all() - held_bytes(bytes_, Sharding::Optimizer, replicas)));
}

ShapeCosts::Transfers ShapeCosts::transfers_of(const std::vector<Shape>& shapes) const
{
  Transfers transfers;
  if (links_ == Links::Alone) return transfers;
  for (const auto& shape : shapes) {
    const std::size_t before = transfers.size();
    for (std::size_t i = 1; i < shape.stages.size(); ++i) {
      const std::pair kinds(shape.stages[i - 1].kind, shape.stages[i].kind);
      const bool is_known = std::any_of(transfers.begin() + static_cast<std::ptrdiff_t>(before), transfers.end(),
                                        [&](const auto& known) { return known.first == kinds; });
      if (!is_known) transfers.emplace_back(kinds, shape.copies);
    }
  }
  std::sort(transfers.begin(), transfers.end());
  std::size_t last = 0;
  for (std::size_t i = 1; i < transfers.size(); ++i) {
    if (transfers[i].first == transfers[last].first) {
      transfers[last].second += transfers[i].second;
    } else {
      transfers[++last] = transfers[i];
    }
  }
  if (!transfers.empty()) transfers.resize(last + 1);
  return transfers;
}

ShapeCosts::Hop ShapeCosts::hop(const ShapeStage& from, const ShapeStage& to, const Transfers& transfers) const
{
  if (problem_.goal.has_free_transfers()) return {};
  const std::pair kinds(from.kind, to.kind);
  const auto found = std::lower_bound(transfers.begin(), transfers.end(), kinds,
                                      [](const auto& known, const auto& one) { return known.first < one; });
  const Path between = path(from.kind, to.kind, found == transfers.end() ? 1 : found->second);
  const Bytes output = cost().boundary_output(to.first_layer);
  const Bytes gradient = cost().boundary_gradient(to.first_layer);
  return {between.transfer_time(output), between.transfer_time(gradient),
          std::max(between.data_time(output), between.data_time(gradient))};
}

std::vector<ShapeTimes> ShapeCosts::times(const std::vector<Shape>& shapes) const
{
  const Surroundings all{copies_of(shapes), transfers_of(shapes)};
  std::vector<ShapeTimes> times;
  for (const auto& shape : shapes) times.push_back(this->times(shape, all));
  return times;
}

bool ShapeCosts::divides_ties_alike(const Shape& shape) const
{
  const auto shards_of = [&](std::size_t layer) {
    const auto stage = std::find_if(shape.stages.begin(), shape.stages.end(),
                                    [layer](const ShapeStage& each) { return layer <= each.last_layer; });
    return stage->tensor;
  };
  return std::all_of(ties_.begin(), ties_.end(),
                     [&](const Tie& tie) { return shards_of(tie.layer) == shards_of(tie.owner); });
}

ShapeTimes ShapeCosts::times(const Shape& shape, const Surroundings& all) const
{
  ShapeTimes times;
  const std::size_t count = shape.stages.size();
  const TransferTimes input = inputs_[shape.stages.front().kind];
  times.period = input.data;
  times.backward.resize(count);
  times.after_stage.resize(count);
  Seconds round;  // of a micro-batch from the forward of a stage to the end of its backward
  Seconds forwards;
  Seconds backwards;
  std::vector<Seconds> rounds(count);  // likewise, of each stage
  std::vector<Seconds> computes(count);
  for (std::size_t i = count; i-- > 0;) {
    const ShapeStage& stage = shape.stages[i];
    const CostModel& costs = part(stage.tensor).cost;
    const Seconds compute = compute_time(stage);
    if (i + 1 < count) {
      const Hop next = hop(stage, shape.stages[i + 1], all.transfers);
      round += next.there + next.back;
      times.period = std::max(times.period, next.busiest);
    }
    computes[i] = compute;
    rounds[i] = round + compute;
    // Stages i to k hold at most so many micro-batches that are not held behind them, and each of these is on its way
    // from i to k and back.
    for (std::size_t k = i; k < count && keeps_few_; ++k) {
      const auto held = static_cast<double>(in_flight(count - 1 - i) - in_flight(count - 1 - k) + 1);
      times.period = std::max(times.period, (rounds[i] - rounds[k] + computes[k]) / held);
    }
    round = rounds[i];
    times.period = std::max(times.period, compute);
    const std::size_t device = kinds_[stage.kind].devices.front();
    forwards = std::max(forwards, costs.forward_time(device, stage.first_layer, stage.last_layer));
    times.backward[i] = costs.backward_time(device, stage.first_layer, stage.last_layer);
    backwards = std::max(backwards, times.backward[i]);
    times.fits = times.fits && fits(stage, count - 1 - i, all.replicas);
  }
  times.fits = times.fits && divides_ties_alike(shape);
  times.alone = input.total() + round;
  if (schedule_ == ChainSchedule::GPipe) times.period = std::max(times.period, forwards + backwards);
  for (std::size_t i = 1; i < count; ++i) {
    const Seconds back = hop(shape.stages[i - 1], shape.stages[i], all.transfers).back;
    times.after_stage[i] = times.after_stage[i - 1] + times.backward[i - 1] + back;
  }
  return times;
}

/// The time in which the replicas of layers add up their gradients. `shards`: of the one with the fewest; `syncs`: of
/// other layers at the same time.
Seconds ShapeCosts::sync_time(std::size_t first, std::size_t last, const std::vector<KindReplicas>& replicas_of_kind,
                              std::size_t shards, std::size_t syncs) const
{
  std::vector<std::size_t> used;
  std::size_t replicas = 0;
  std::vector<std::size_t> in_site(kinds_.size(), 0);
  std::size_t sites = 0;
  for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
    if (replicas_of_kind[kind].count == 0) continue;
    used.push_back(kind);
    replicas += replicas_of_kind[kind].count;
    sites += in_site[sites_[kind]] == 0 ? 1 : 0;
    in_site[sites_[kind]] += replicas_of_kind[kind].count;
  }
  if (replicas < 2 || problem_.goal.has_free_transfers()) return Seconds(0);
  const auto& parameters = parts_.front().parameters;
  const Bytes size(bytes_of_a_gradient * (parameters[last + 1] - parameters[first]) / static_cast<double>(shards));
  const Seconds start = least_collective_start(problem_.cluster);
  const auto in_ring = [start](std::size_t ends, Bytes of_all, const Path& path) {
    const auto others = static_cast<double>(ends - 1);
    return ring_time(ends, 2 * others, 2 * others / static_cast<double>(ends) * of_all, path, start);
  };
  Seconds ring;
  Seconds inside;
  Seconds across;
  for (std::size_t i = 0; i < used.size(); ++i) {
    const std::size_t next = used[(i + 1) % used.size()];
    if (used.size() > 1) ring = std::max(ring, in_ring(replicas, size, path(used[i], next, syncs)));
    const auto [of_kind, of_shapes] = replicas_of_kind[used[i]];
    // The replicas of a shape's stage are neighbours, as in Layout::StagesApart.
    const bool share_node = of_shapes == 1 && of_kind <= kinds_[used[i]].node;
    const Path between = share_node ? inside_nodes_[used[i]] : path(used[i], used[i], syncs);
    if (of_kind > 1) ring = std::max(ring, in_ring(replicas, size, between));
    const std::size_t site = sites_[used[i]];
    const bool is_same_site = site == sites_[next];
    if (!is_same_site) across = std::max(across, in_ring(sites, size, path(used[i], next, syncs)));
    const Path to_peer = is_same_site && next != used[i] ? path(used[i], next, syncs) : between;
    if (in_site[site] > 1) inside = std::max(inside, in_ring(in_site[site], size, to_peer));
  }
  return sites > 1 ? std::min(ring, inside + across) : ring;
}

std::optional<ShapeEstimate> ShapeCosts::estimate(const std::vector<Shape>& shapes,
                                                  const std::vector<ShapeTimes>& times) const
{
  const std::uint64_t all = problem_.goal.microbatches;
  // The step of each shape before its sync takes alone + (m - 1) x period.
  const std::size_t copies = copies_of(shapes);
  Seconds least;
  double rate = 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    least = std::max(least, times[i].alone);
    rate += times[i].period > Seconds(0) ? static_cast<double>(shapes[i].copies) / times[i].period.value : 0;
  }
  if (copies > all) return std::nullopt;
  // Replicas of a layer all have the layer on their devices whose matrix it uses, or none does.
  const bool is_one_stage = shapes.front().stages.size() == 1;
  const bool are_alike = std::all_of(shapes.begin(), shapes.end(),
                                     [&](const Shape& shape) { return (shape.stages.size() == 1) == is_one_stage; });
  if (!ties_.empty() && !are_alike) return std::nullopt;
  const auto room = [&](std::size_t i, Seconds step) {
    if (times[i].period <= Seconds(0)) return all;
    return 1 + std::min(all, static_cast<std::uint64_t>((step - times[i].alone) / times[i].period * (1 + 1e-12)));
  };
  const auto holds = [&](Seconds step) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < shapes.size() && sum < all; ++i) sum += shapes[i].copies * room(i, step);
    return sum >= all;
  };
  ShapeEstimate result;
  result.step = least;
  if (!holds(least)) {
    Seconds low = least;
    Seconds high = least + Seconds(static_cast<double>(all) / rate) + times.front().period;
    while (!holds(high)) high = high + (high - low);
    for (int i = 0; i < 40 && high - low > 1e-9 * high; ++i) {
      const Seconds middle = (low + high) / 2.0;
      (holds(middle) ? high : low) = middle;
    }
    result.step = high;
  }
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    result.microbatches.push_back(room(i, result.step));
    sum += shapes[i].copies * result.microbatches.back();
  }
  result.fewer.assign(shapes.size(), 0);
  while (sum > all) {  // first from those that end last
    std::optional<std::size_t> last;
    Seconds latest(-1);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      if (result.microbatches[i] == 1) continue;
      const Seconds end = times[i].alone + static_cast<double>(result.microbatches[i] - 1) * times[i].period;
      if (end > latest) last = i;
      latest = std::max(latest, end);
    }
    if (!last) return std::nullopt;
    const auto removed = std::min<std::uint64_t>(sum - all, shapes[*last].copies - result.fewer[*last]);
    result.fewer[*last] += removed;
    sum -= removed;
    if (result.fewer[*last] == shapes[*last].copies) {
      result.fewer[*last] = 0;
      --result.microbatches[*last];
    }
  }
  if (copies == 1) return result;

  // From the last layers to the first ones, each sync begins when all replicas have ended their backward passes and
  // their syncs before.
  const std::vector<std::size_t> begins = cuts_of(shapes);
  std::vector<std::size_t> at;                // the stage of each shape
  std::vector<Seconds> ends;                  // of each shape's passes
  std::vector<std::vector<Seconds>> free_at;  // by shape and stage
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    at.push_back(shapes[i].stages.size() - 1);
    ends.push_back(times[i].alone + static_cast<double>(result.microbatches[i] - 1) * times[i].period);
    free_at.emplace_back();
    for (const Seconds after : times[i].after_stage) free_at.back().push_back(ends.back() - after);
  }
  std::vector<KindReplicas> replicas_of_kind(kinds_.size());
  std::size_t after = cost().layers();
  for (auto begin = begins.rbegin(); begin != begins.rend(); ++begin) {
    std::fill(replicas_of_kind.begin(), replicas_of_kind.end(), KindReplicas());
    std::size_t shards = std::numeric_limits<std::size_t>::max();
    Seconds start;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      if (shapes[i].stages[at[i]].first_layer > *begin) --at[i];
      const ShapeStage& stage = shapes[i].stages[at[i]];
      replicas_of_kind[stage.kind].count += shapes[i].copies;
      ++replicas_of_kind[stage.kind].shapes;
      shards = std::min(shards, stage.tensor);
      start = std::max(start, free_at[i][at[i]]);
    }
    const Seconds sync = sync_time(*begin, after - 1, replicas_of_kind, shards, begins.size());
    Seconds end = start + sync;
    if (shapes.size() == 1) {  // but for the first layers', gradients are added up beside the backward pass
      constexpr auto parts = static_cast<double>(parts_of_divided_stage);
      end = start + std::max(sync / parts, sync - (1 - 1 / parts) * times.front().backward[at.front()]);
    }
    for (std::size_t i = 0; i < shapes.size(); ++i) free_at[i][at[i]] = end;
    result.step = std::max(result.step, end);
    after = *begin;
  }
  return result;
}

}  // namespace isobar::allocators
