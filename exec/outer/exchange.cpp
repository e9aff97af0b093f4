#include "exec/outer/exchange.hpp"

#include "exec/outer/codecs.hpp"
#include "exec/outer/outer_optimizer.hpp"
#include "exec/outer/parallel_parts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace isobar::exec {

namespace {

using WeightBytes = std::array<std::byte, 8>;

WeightBytes bytes_of(double weight)
{
  const auto bits = std::bit_cast<std::uint64_t>(weight);
  WeightBytes bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(bits >> (8 * i));
  return bytes;
}

double weight_of(const WeightBytes& bytes)
{
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) bits |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  return std::bit_cast<double>(bits);
}

bool is_weight(double weight)
{
  return weight >= 0 && weight <= most_weight;
}

/// Bytes of a worker that are no encoding.
class BadEncoding : public EnvironmentError {
 public:
  BadEncoding(std::size_t of_place, const std::string& what) : EnvironmentError(what), place(of_place) {}
  std::size_t place;
};

void decode_of(std::size_t place, const Codec& codec, std::span<const std::byte> bytes, std::span<float> values)
{
  try {
    decode(codec, bytes, values);
  } catch (const EnvironmentError& error) {
    throw BadEncoding(place, error.what());
  }
}

/// One exchange, as one of its workers makes it.
class Exchange {
 public:
  Exchange(Peers& peers, const Codec& codec, const ExchangeGroup& group, std::span<const std::byte> encoded,
           std::span<float> mean)
      : peers_(peers), codec_(codec), group_(group), encoded_(encoded), mean_(mean), weights_(group.workers.size())
  {
    const auto found = std::ranges::find(group.workers, peers.self());
    ensure(found != group.workers.end(), "a worker is one of those that it exchanges with");
    ensure(std::ranges::adjacent_find(group.workers, std::greater_equal<>()) == group.workers.end(),
           "workers are in ascending order, each once");
    ensure(is_weight(group.weight), "a weight is from 0 to most_weight");
    ensure(encoded.size() == encoded_bytes(codec, mean.size()), "a worker encodes as many values as the mean has");
    place_ = static_cast<std::size_t>(found - group.workers.begin());
  }

  void run()
  {
    if (is_sparse(codec_)) {
      gather_values();
    } else {
      scatter_values();
      gather_means();
    }
    gather_reports();
    if (!failures_.empty()) throw_failures();
    if (total_weight() == 0) throw EnvironmentError("outer exchange: no worker has a weight");
  }

 private:
  std::size_t size() const { return group_.workers.size(); }
  OwnedPart part_of(std::size_t place) const { return owned_part(mean_.size(), place, size()); }
  double total_weight() const { return std::accumulate(weights_.begin(), weights_.end(), 0.0); }
  bool can_take_mean() const { return failures_.empty() && silent_.empty() && total_weight() > 0; }

  template <typename Byte>
  std::span<Byte> encoding_of(std::span<Byte> of_all, const OwnedPart& part) const
  {
    return of_all.subspan(encoded_bytes(codec_, part.first), encoded_bytes(codec_, part.count));
  }

  /// Makes transfers with all other workers. `set_buffers`: for that at a place. Returns the places with which both
  /// messages have moved. `may_be_silent`: whether one may send nothing, since another one has failed.
  template <typename SetBuffers>
  std::vector<std::size_t> make_turn(SetBuffers set_buffers, bool may_be_silent = false)
  {
    std::vector<PeerTransfer> transfers;
    std::vector<std::size_t> places;
    for (std::size_t place = 0; place < size(); ++place) {
      if (place == place_) continue;
      PeerTransfer transfer{.worker = group_.workers[place], .outgoing = {}, .incoming = {}};
      set_buffers(transfer, place);
      transfers.push_back(std::move(transfer));
      places.push_back(place);
    }
    peers_.exchange(transfers, group_.limit * ++turns_);
    std::vector<std::size_t> whole;
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      const auto& failure = transfers[i].failure;
      if (!failure) {
        whole.push_back(places[i]);
      } else if (failure->kind == Failure::Kind::Cancelled && may_be_silent) {
        silent_.insert(places[i]);
      } else {
        failures_.try_emplace(places[i], failure->text);
      }
    }
    return whole;
  }

  /// Sends each worker, and receives from it, a weight and encoded values.
  template <typename SetBuffers>
  void exchange_values(SetBuffers set_buffers)
  {
    const WeightBytes own_weight = bytes_of(group_.weight);
    std::vector<WeightBytes> weights(size());
    const auto whole = make_turn([&](PeerTransfer& transfer, std::size_t place) {
      transfer.outgoing = {own_weight};
      transfer.incoming = {weights[place]};
      set_buffers(transfer, place);
    });
    weights_[place_] = group_.weight;
    for (const std::size_t place : whole) {
      weights_[place] = weight_of(weights[place]);
      if (!is_weight(weights_[place])) failures_[place] = fmt::format("its weight is {}", weights_[place]);
    }
  }

  /// Calls `use` with means of pieces of a part, and the pieces. `of_place`: everybody's encoding of the part.
  template <typename OfPlace, typename Use>
  void take_means(const OwnedPart& part, OfPlace of_place, Use use)
  {
    constexpr std::size_t most = 4 * top_k_chunk;  // values of a piece: some, that they stay in a cache
    const auto work = [&](std::size_t begin, std::size_t end) {
      std::vector<float> values(most * size());
      std::vector<float> mean(most);
      for (; begin < end; begin += most) {
        const OwnedPart piece{begin, std::min(most, end - begin)};
        std::vector<std::span<const float>> all;
        for (std::size_t place = 0; place < size(); ++place) {
          const auto decoded = std::span(values).subspan(place * most, piece.count);
          decode_of(place, codec_, encoding_of(of_place(place), piece), decoded);
          all.emplace_back(decoded);
        }
        const auto result = std::span(mean).first(piece.count);
        weighted_mean(all, weights_, result);
        use(result, OwnedPart{part.first + piece.first, piece.count});
      }
    };
    blaming([&] { in_parallel_parts(part.count, group_.threads, work); });
  }

  /// Runs `work`, and notes whose bytes were no encoding.
  template <typename Work>
  void blaming(const Work& work)
  {
    try {
      work();
    } catch (const BadEncoding& error) {
      ensure(error.place != place_, "a worker encodes its values before an exchange");
      failures_.try_emplace(error.place, error.what());
    }
  }

  void scatter_values()
  {
    const OwnedPart own = part_of(place_);
    const std::size_t bytes = encoded_bytes(codec_, own.count);
    std::vector<std::byte> received(bytes * size());
    const auto of_place = [&](std::size_t place) -> std::span<const std::byte> {
      if (place == place_) return encoding_of(encoded_, own);
      return std::span(received).subspan(place * bytes, bytes);
    };
    exchange_values([&](PeerTransfer& transfer, std::size_t place) {
      transfer.outgoing.push_back(encoding_of(encoded_, part_of(place)));
      transfer.incoming.push_back(std::span(received).subspan(place * bytes, bytes));
    });
    means_.resize(encoded_.size());
    if (!can_take_mean()) return;
    take_means(own, of_place, [&](std::span<const float> mean, const OwnedPart& piece) {
      encode(codec_, mean, encoding_of(std::span(means_), piece));
    });
  }

  /// All decode the means, their owners too, so that all have the same bits. A worker that could not take its mean
  /// sends nothing, and reports why in the last turn.
  void gather_means()
  {
    const bool has_mean = can_take_mean();
    const auto set_buffers = [&](PeerTransfer& transfer, std::size_t place) {
      if (has_mean) transfer.outgoing = {encoding_of(std::span(means_), part_of(place_))};
      transfer.incoming = {encoding_of(std::span(means_), part_of(place))};
    };
    make_turn(set_buffers, true);
    if (!can_take_mean()) return;
    for (std::size_t place = 0; place < size(); ++place) {
      const OwnedPart part = part_of(place);
      const auto work = [&](std::size_t begin, std::size_t end) {
        const OwnedPart piece{part.first + begin, end - begin};
        decode_of(place, codec_, encoding_of(std::span(means_), piece), mean_.subspan(piece.first, piece.count));
      };
      blaming([&] { in_parallel_parts(part.count, group_.threads, work); });
    }
  }

  void gather_values()
  {
    std::vector<std::byte> received(encoded_.size() * size());
    const auto bytes_of_place = [&](std::size_t place) {
      return std::span(received).subspan(place * encoded_.size(), encoded_.size());
    };
    const auto of_place = [&](std::size_t place) -> std::span<const std::byte> {
      return place == place_ ? encoded_ : bytes_of_place(place);
    };
    exchange_values([&](PeerTransfer& transfer, std::size_t place) {
      transfer.outgoing.push_back(encoded_);
      transfer.incoming.push_back(bytes_of_place(place));
    });
    if (!can_take_mean()) return;
    take_means({0, mean_.size()}, of_place, [&](std::span<const float> mean, const OwnedPart& piece) {
      std::ranges::copy(mean, mean_.begin() + static_cast<std::ptrdiff_t>(piece.first));
    });
  }

  /// Who fails in this turn has sent all that counts.
  void gather_reports()
  {
    const auto failed_before = failures_;
    std::vector<std::byte> own(size());
    for (const auto& [place, why] : failures_) own[place] = std::byte{1};
    std::vector<std::byte> reports(size() * size());
    const auto report_of = [&](std::size_t place) { return std::span(reports).subspan(place * size(), size()); };
    const auto whole = make_turn([&](PeerTransfer& transfer, std::size_t place) {
      transfer.outgoing = {own};
      transfer.incoming = {report_of(place)};
    });
    failures_ = failed_before;
    for (const std::size_t reporter : whole) {
      for (std::size_t place = 0; place < size(); ++place) {
        if (report_of(reporter)[place] == std::byte{0}) continue;
        failures_.try_emplace(place, fmt::format("worker {} reports its failure", group_.workers[reporter]));
      }
    }
    if (!failures_.empty() || total_weight() == 0) return;
    for (const std::size_t place : silent_) failures_.try_emplace(place, "it sent nothing and reports no failure");
  }

  [[noreturn]] void throw_failures() const
  {
    std::vector<std::size_t> workers;
    std::vector<std::string> texts;
    for (const auto& [place, why] : failures_) {
      workers.push_back(group_.workers[place]);
      texts.push_back(fmt::format("worker {}: {}", workers.back(), why));
    }
    throw WorkersFailed(std::move(workers), fmt::format("outer exchange: {}", fmt::join(texts, "; ")));
  }

  Peers& peers_;
  const Codec& codec_;
  const ExchangeGroup& group_;
  std::span<const std::byte> encoded_;
  std::span<float> mean_;
  std::size_t place_ = 0;  // of this worker in the group
  int turns_ = 0;
  std::vector<double> weights_;                  // by place
  std::vector<std::byte> means_;                 // of all parts, encoded
  std::map<std::size_t, std::string> failures_;  // why, by place
  std::set<std::size_t> silent_;                 // places whose workers sent nothing
};

}  // namespace

OwnedPart owned_part(std::size_t values, std::size_t place, std::size_t workers)
{
  const std::size_t chunks = (values + top_k_chunk - 1) / top_k_chunk;
  const auto bound = [&](std::size_t index) { return std::min(values, chunks * index / workers * top_k_chunk); };
  return {bound(place), bound(place + 1) - bound(place)};
}

ExchangeBytes exchange_bytes(const Codec& codec, std::size_t values, std::size_t place, std::size_t workers)
{
  const std::uint64_t all = encoded_bytes(codec, values);
  const std::uint64_t own = encoded_bytes(codec, owned_part(values, place, workers).count);
  const std::uint64_t others = workers - 1;
  const std::uint64_t moved = is_sparse(codec) ? others * all : all - own + others * own;
  return {.sent = moved, .received = moved, .control = others * (sizeof(WeightBytes) + workers)};
}

void exchange_mean(Peers& peers, const Codec& codec, const ExchangeGroup& group, std::span<const std::byte> encoded,
                   std::span<float> mean)
{
  Exchange(peers, codec, group, encoded, mean).run();
}

}  // namespace isobar::exec
