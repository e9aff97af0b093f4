#include "schedules/rounds/outer_pieces.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

namespace isobar::schedules {

namespace {

constexpr double same_end = 1e-9;  // as parts of a layer: nearer ones are the same

/// A range of a layer's values that ends at `end` of all, and the rank that updates it.
struct Holding {
  double end = 1;
  std::size_t rank = 0;
  std::size_t gather = no_gather;
};

/// Who updates the layers of workers.
class Holders {
 public:
  Holders(const std::vector<OuterWorker>& workers, std::vector<OuterGather>& gathers) : gathers_(gathers)
  {
    for (std::size_t worker = 0; worker < workers.size(); ++worker) add(worker, workers[worker].plan);
  }

  const std::vector<Holding>& of(std::size_t worker, std::size_t layer) const { return by_layer_[worker].at(layer); }

 private:
  void add(std::size_t worker, const Plan& plan)
  {
    rank_of_.clear();
    gather_of_.clear();
    const auto devices = devices_of(plan);
    for (std::size_t rank = 0; rank < devices.size(); ++rank) rank_of_.emplace(devices[rank], rank);
    auto& layers = by_layer_.emplace_back();
    for (const auto& stage : plan.stages) {
      const auto holdings = holdings_of(worker, stage);
      for (std::size_t layer = stage.first_layer; layer <= stage.last_layer; ++layer) layers.push_back(holdings);
    }
  }

  /// Who updates the values of a stage's layers, in their order.
  std::vector<Holding> holdings_of(std::size_t worker, const Stage& stage)
  {
    std::vector<Holding> holdings;
    const auto& first = stage.replicas.front().shards;
    const auto replicas = static_cast<double>(stage.replicas.size());
    double begin = 0;
    for (std::size_t shard = 0; shard < first.size(); ++shard) {
      std::vector<std::size_t> ranks;
      for (const auto& [microbatches, own] : stage.replicas) {
        // Of replicas that are divided in another way, the shard of the same number is the nearest.
        ranks.push_back(rank_of_.at(own[std::min(shard, own.size() - 1)].device));
      }
      const std::size_t gather = gather_among(worker, ranks);
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        holdings.push_back({begin + first[shard].share * static_cast<double>(i + 1) / replicas, ranks[i], gather});
      }
      begin += first[shard].share;
    }
    holdings.back().end = 1;
    return holdings;
  }

  std::size_t gather_among(std::size_t worker, const std::vector<std::size_t>& ranks)
  {
    if (ranks.size() < 2) return no_gather;
    const auto [found, is_new] = gather_of_.try_emplace(ranks, gathers_.size());
    if (is_new) gathers_.push_back({worker, ranks});
    return found->second;
  }

  std::vector<OuterGather>& gathers_;
  std::vector<std::vector<std::vector<Holding>>> by_layer_;  // by worker and layer
  // Of the worker that is added:
  std::unordered_map<std::string, std::size_t> rank_of_;
  std::map<std::vector<std::size_t>, std::size_t> gather_of_;
};

}  // namespace

OuterDivision divide_outer(const std::vector<OuterWorker>& workers, const Workload& workload, std::uint64_t fragments)
{
  OuterDivision division;
  const Holders holders(workers, division.gathers);
  std::map<std::pair<std::vector<std::size_t>, std::vector<std::size_t>>, std::size_t> piece_of;
  for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
    const std::uint64_t values = workload.layers[layer].parameters;
    std::vector<std::size_t> at(workers.size(), 0);  // the holding that has the next values, by worker
    for (std::uint64_t begin = 0; begin < values;) {
      OuterPiece piece;
      double end = 1;
      for (std::size_t worker = 0; worker < workers.size(); ++worker) {
        const Holding& own = holders.of(worker, layer)[at[worker]];
        piece.ranks.push_back(own.rank);
        piece.gathers.push_back(own.gather);
        end = std::min(end, own.end);
      }
      for (std::size_t worker = 0; worker < workers.size(); ++worker) {
        const auto& own = holders.of(worker, layer);
        if (at[worker] + 1 < own.size() && own[at[worker]].end <= end + same_end) ++at[worker];
      }
      const bool is_last = end + same_end >= 1;
      const auto last = is_last ? values : static_cast<std::uint64_t>(std::floor(end * static_cast<double>(values)));
      if (last > begin) {
        const auto [found, is_new] = piece_of.try_emplace({piece.ranks, piece.gathers}, division.pieces.size());
        if (is_new) {
          piece.values.assign(fragments, 0);
          division.pieces.push_back(std::move(piece));
        }
        division.pieces[found->second].values[layer % fragments] += last - begin;
      }
      begin = std::max(begin, last);
    }
  }
  return division;
}

}  // namespace isobar::schedules
