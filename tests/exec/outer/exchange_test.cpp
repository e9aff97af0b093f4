#include "exec/outer/exchange.hpp"

#include "exec/outer/codecs.hpp"
#include "exec/outer/connected_peers.hpp"
#include "exec/outer/outer_optimizer.hpp"
#include "tests/exec/links/tcp_ranks.hpp"
#include "tests/exec/outer/in_process_peers.hpp"
#include "tests/exec/outer/normal_values.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

namespace isobar::exec::exchange_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Floats = std::vector<float>;
using testing_support::normal_values;

const std::vector<std::string> all_codecs = {"fp32", "bf16", "int8", "int4", "top-k 0.03", "top-k 0.03 2-bit"};

Data encoded(const Codec& codec, const Floats& values)
{
  Data bytes(encoded_bytes(codec, values.size()));
  encode(codec, values, bytes);
  return bytes;
}

Floats decoded(const Codec& codec, const Data& bytes, std::size_t count)
{
  Floats values(count);
  decode(codec, bytes, values);
  return values;
}

Floats there_and_back(const Codec& codec, const Floats& values)
{
  return decoded(codec, encoded(codec, values), values.size());
}

std::vector<std::uint32_t> bits_of(const Floats& values)
{
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

std::vector<std::size_t> first_workers(std::size_t count)
{
  std::vector<std::size_t> workers(count);
  std::iota(workers.begin(), workers.end(), std::size_t{0});
  return workers;
}

/// What an exchange left at a worker.
struct Outcome {
  Floats mean;
  std::vector<std::size_t> failed;
  std::string error;
  PeerTraffic traffic;
};

Outcome outcome_of(Peers& peers, const Codec& codec, const ExchangeGroup& group, const Floats& gradient)
{
  Outcome outcome{.mean = Floats(gradient.size()), .failed = {}, .error = {}, .traffic = {}};
  const PeerTraffic before = peers.traffic();
  try {
    exchange_mean(peers, codec, group, encoded(codec, gradient), outcome.mean);
  } catch (const WorkersFailed& failure) {
    outcome.failed = failure.workers();
    outcome.error = failure.what();
  } catch (const std::exception& error) {
    outcome.error = error.what();
  }
  outcome.traffic = {peers.traffic().sent - before.sent, peers.traffic().received - before.received};
  return outcome;
}

/// Runs `work(worker)` of all workers at the same time.
void at_all(std::size_t workers, const std::function<void(std::size_t)>& work)
{
  std::vector<std::jthread> threads;
  for (std::size_t worker = 0; worker < workers; ++worker) threads.emplace_back([&work, worker] { work(worker); });
}

std::vector<Outcome> exchanged(const Codec& codec, const std::vector<Floats>& gradients,
                               const std::vector<double>& weights, std::size_t threads = 1)
{
  PostOffice office;
  std::vector<Outcome> outcomes(gradients.size());
  at_all(gradients.size(), [&](std::size_t self) {
    InProcessPeers peers(office, self);
    const ExchangeGroup group{first_workers(gradients.size()), weights[self], plenty, threads};
    outcomes[self] = outcome_of(peers, codec, group, gradients[self]);
  });
  return outcomes;
}

std::vector<Floats> gradients_of(std::size_t workers, std::size_t count, unsigned seed = 0)
{
  std::vector<Floats> gradients;
  for (std::size_t worker = 0; worker < workers; ++worker) {
    gradients.push_back(normal_values(count, seed + static_cast<unsigned>(worker)));
  }
  return gradients;
}

Floats mean_of(const std::vector<Floats>& gradients, const std::vector<double>& weights)
{
  const std::vector<std::span<const float>> spans(gradients.begin(), gradients.end());
  Floats mean(gradients[0].size());
  weighted_mean(spans, weights, mean);
  return mean;
}

TEST(OwnedPart, IsOfWholeChunksWhichCoverAllValues)
{
  for (const std::size_t values : {0, 1, 4095, 4096, 4097, 50'000, 1'000'003}) {
    for (const std::size_t workers : {1, 2, 3, 7, 14}) {
      std::size_t covered = 0;
      for (std::size_t place = 0; place < workers; ++place) {
        const auto part = owned_part(values, place, workers);
        EXPECT_EQ(part.first, covered);
        EXPECT_TRUE(part.first % 4096 == 0 || part.count == 0);
        EXPECT_LE(part.count, values / workers + 2 * 4096);
        covered += part.count;
      }
      EXPECT_EQ(covered, values);
    }
  }
}

TEST(Exchange, GivesAllWorkersTheSameBitsOfTheWeightedMean)
{
  for (const auto& text : all_codecs) {
    const Codec codec = codec_from_text(text);
    for (const std::size_t workers : {1, 2, 3, 4, 7}) {
      for (const std::size_t count : {0, 1, 5, 4096, 4097, 50'001}) {
        const auto gradients = gradients_of(workers, count);
        std::vector<double> weights(workers, 1);
        weights.back() = 2.5;
        const auto outcomes = exchanged(codec, gradients, weights);
        std::vector<Floats> arrived;
        for (const auto& gradient : gradients) arrived.push_back(there_and_back(codec, gradient));
        Floats expected = mean_of(arrived, weights);
        if (!is_sparse(codec)) expected = there_and_back(codec, expected);
        for (const auto& outcome : outcomes) {
          EXPECT_EQ(outcome.error, "");
          EXPECT_TRUE(bits_of(outcome.mean) == bits_of(expected)) << text << ", " << workers << ", " << count;
        }
      }
    }
  }
}

TEST(Exchange, MovesTheBytesOfItsClosedForm)
{
  for (const auto& text : all_codecs) {
    const Codec codec = codec_from_text(text);
    for (const std::size_t workers : {1, 2, 3, 4, 7}) {
      for (const std::size_t count : {0, 1, 4097, 50'001, 7 * 8192}) {
        const auto outcomes = exchanged(codec, gradients_of(workers, count), std::vector<double>(workers, 1));
        for (std::size_t place = 0; place < workers; ++place) {
          const auto expected = exchange_bytes(codec, count, place, workers);
          EXPECT_EQ(outcomes[place].traffic.sent, expected.sent + expected.control) << text;
          EXPECT_EQ(outcomes[place].traffic.received, expected.received + expected.control) << text;
          EXPECT_EQ(expected.control, (workers - 1) * (8 + workers));
        }
      }
    }
  }
  // Equal parts: 2 (K-1)/K B of a dense codec, (K-1) B of a sparse one.
  for (std::size_t place = 0; place < 7; ++place) {
    const std::uint64_t bytes = 7 * 8192 + 7 * 8 * 4;
    EXPECT_EQ(exchange_bytes(codec_from_text("int8"), 7 * 8192, place, 7).sent, 2 * 6 * bytes / 7);
    EXPECT_EQ(exchange_bytes(codec_from_text("top-k 0.015625 2-bit"), 7 * 8192, place, 7).sent, 6 * 14 * 114);
  }
}

/// The scales of blocks of an int8 encoding.
std::vector<double> scales_of(const Data& bytes, std::size_t count)
{
  std::vector<double> scales;
  for (std::size_t block = 0; block * codec_block < count; ++block) {
    std::uint32_t bits = 0;
    for (std::size_t i = 4; i-- > 0;) bits = bits << 8 | std::to_integer<std::uint32_t>(bytes[block * 1028 + i]);
    scales.push_back(static_cast<double>(std::bit_cast<float>(bits)));
  }
  return scales;
}

TEST(Exchange, OfInt8IsOffByHalfTheMeanOfTheScalesAndHalfTheScaleOfTheMean)
{
  EXPECT_TRUE(rc::check("any workers and magnitudes", [] {
    const Codec codec{CodecKind::Int8};
    const std::size_t workers = *rc::gen::inRange<std::size_t>(1, 6);
    const std::size_t count = *rc::gen::inRange<std::size_t>(1, 10'000);
    auto gradients = gradients_of(workers, count, *rc::gen::inRange<unsigned>(0, 1'000'000));
    std::vector<double> weights;
    for (auto& gradient : gradients) {
      const float factor = std::ldexp(1.0F, *rc::gen::inRange(-100, 100));
      for (auto& value : gradient) value *= factor;
      weights.push_back(*rc::gen::inRange(1, 5));
    }
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<double> bounds((count + codec_block - 1) / codec_block);
    std::vector<Floats> arrived;
    for (std::size_t k = 0; k < workers; ++k) {
      const Data bytes = encoded(codec, gradients[k]);
      arrived.push_back(decoded(codec, bytes, count));
      const auto scales = scales_of(bytes, count);
      for (std::size_t block = 0; block < bounds.size(); ++block)
        bounds[block] += weights[k] / total * scales[block] / 2;
    }
    const auto scales = scales_of(encoded(codec, mean_of(arrived, weights)), count);
    for (std::size_t block = 0; block < bounds.size(); ++block) bounds[block] += scales[block] / 2;
    const Floats mean = exchanged(codec, gradients, weights)[0].mean;
    for (std::size_t i = 0; i < count; ++i) {
      double exact = 0;
      for (std::size_t k = 0; k < workers; ++k) exact += weights[k] / total * static_cast<double>(gradients[k][i]);
      RC_ASSERT(std::abs(static_cast<double>(mean[i]) - exact) <= bounds[i / codec_block] * (1 + 0x1p-13));
    }
  }));
}

TEST(Exchange, HasTheSameBitsWithAnyNumberOfThreads)
{
  for (const std::string text : {"int8", "top-k 0.03"}) {
    const Codec codec = codec_from_text(text);
    const auto gradients = gradients_of(2, 400'000);
    const auto expected = exchanged(codec, gradients, {1, 1})[0].mean;
    for (const std::size_t threads : {2, 3, 16}) {
      EXPECT_TRUE(bits_of(exchanged(codec, gradients, {1, 1}, threads)[1].mean) == bits_of(expected)) << threads;
    }
  }
}

TEST(Exchange, OfEqualWorkersIsThatOfOne)
{
  for (const std::string text : {"fp32", "int8", "top-k 0.03"}) {
    const Codec codec = codec_from_text(text);
    const Floats gradient = normal_values(9000, 1);
    const auto one = bits_of(exchanged(codec, {gradient}, {1})[0].mean);
    for (const std::size_t workers : {2, 3, 4, 8}) {
      const auto outcomes = exchanged(codec, std::vector<Floats>(workers, gradient), std::vector<double>(workers, 1));
      EXPECT_TRUE(bits_of(outcomes[0].mean) == one) << text << ", " << workers;
    }
  }
}

TEST(Exchange, DoesNotCountAWorkerWithoutWeight)
{
  const Codec codec;
  const auto gradients = gradients_of(3, 9000);
  for (const auto& outcome : exchanged(codec, gradients, {1, 0, 1})) {
    EXPECT_EQ(outcome.mean, mean_of({gradients[0], gradients[2]}, {1, 1}));
  }
}

TEST(Exchange, NeedsAWeight)
{
  for (const std::string text : {"int8", "top-k 0.03"}) {
    for (const auto& outcome : exchanged(codec_from_text(text), gradients_of(3, 9000), {0, 0, 0})) {
      EXPECT_EQ(outcome.error, "outer exchange: no worker has a weight");
      EXPECT_THAT(outcome.failed, testing::IsEmpty());
    }
  }
}

/// Peers of which one sends other bytes, is silent, or leaves, from a turn on.
class FaultyPeers final : public Peers {
 public:
  using Fault = std::function<void(std::span<PeerTransfer>)>;

  FaultyPeers(Peers& peers, int turn, Fault fault) : peers_(&peers), turn_(turn), fault_(std::move(fault)) {}

  std::size_t self() const override { return peers_->self(); }
  PeerTraffic traffic() const override { return peers_->traffic(); }
  void exchange(std::span<PeerTransfer> transfers, Seconds limit) override
  {
    if (++turns_ == turn_) fault_(transfers);
    peers_->exchange(transfers, limit);
  }

 private:
  Peers* peers_;
  int turn_;
  Fault fault_;
  int turns_ = 0;
};

/// Exchanges of four workers, of which worker 2 has a fault in a turn; then one of the other three.
struct WithAndWithout {
  std::vector<Outcome> with{4};
  std::vector<Outcome> without{4};
};

WithAndWithout exchanges_with_fault(const Codec& codec, int turn, const FaultyPeers::Fault& fault,
                                    Seconds limit = plenty)
{
  WithAndWithout result;
  PostOffice office;
  const auto gradients = gradients_of(4, 30'000);
  at_all(4, [&](std::size_t self) {
    InProcessPeers peers(office, self);
    if (self == 2) {
      FaultyPeers faulty(peers, turn, fault);
      result.with[self] = outcome_of(faulty, codec, {{0, 1, 2, 3}, 1, limit}, gradients[self]);
      return;
    }
    result.with[self] = outcome_of(peers, codec, {{0, 1, 2, 3}, 1, limit}, gradients[self]);
    result.without[self] = outcome_of(peers, codec, {{0, 1, 3}, 1, plenty}, gradients[self]);
  });
  return result;
}

void expect_survival(const Codec& codec, const WithAndWithout& result, const std::string& why)
{
  const auto gradients = gradients_of(4, 30'000);
  const auto expected = exchanged(codec, {gradients[0], gradients[1], gradients[3]}, {1, 1, 1})[0].mean;
  for (const std::size_t worker : {0, 1, 3}) {
    EXPECT_THAT(result.with[worker].failed, ElementsAre(2));
    EXPECT_EQ(result.with[worker].error, "outer exchange: worker 2: " + why);
    EXPECT_EQ(result.without[worker].error, "");
    EXPECT_TRUE(bits_of(result.without[worker].mean) == bits_of(expected)) << worker;
  }
}

struct Gone : std::exception {};

TEST(Exchange, NamesAWorkerThatLeavesAndContinuesWithoutIt)
{
  const auto leave = [](std::span<PeerTransfer>) { throw Gone(); };
  const Codec int8{CodecKind::Int8};
  expect_survival(int8, exchanges_with_fault(int8, 1, leave), "has left");
  expect_survival(int8, exchanges_with_fault(int8, 2, leave), "has left");
  const Codec sparse = codec_from_text("top-k 0.03");
  expect_survival(sparse, exchanges_with_fault(sparse, 1, leave), "has left");
}

TEST(Exchange, NamesAWorkerThatIsSilent)
{
  const auto sleep = [](std::span<PeerTransfer>) {
    pause(4 * little.value);
    throw Gone();
  };
  const Codec int8{CodecKind::Int8};
  expect_survival(int8, exchanges_with_fault(int8, 1, sleep, little), "is silent");
}

TEST(Exchange, EndsWithAWorkerThatLeavesAfterItHasSentAllValues)
{
  const auto leave = [](std::span<PeerTransfer>) { throw Gone(); };
  const auto result = exchanges_with_fault(Codec{CodecKind::Int8}, 3, leave);
  for (const std::size_t worker : {0, 1, 3}) {
    EXPECT_EQ(result.with[worker].error, "");
    EXPECT_EQ(result.without[worker].error, "");
  }
}

TEST(Exchange, TellsAllOfAWorkerThatFailsForOneOnly)
{
  // Worker 2 sends its values to worker 0 alone, then leaves.
  const auto fault = [](std::span<PeerTransfer> transfers) {
    for (auto& transfer : transfers) {
      if (transfer.worker != 0) transfer.outgoing.clear();
    }
  };
  const auto result = exchanges_with_fault(Codec{CodecKind::Int8}, 1, fault);
  for (const std::size_t worker : {0, 1, 3}) EXPECT_THAT(result.with[worker].failed, ElementsAre(2)) << worker;
}

TEST(Exchange, NamesAWorkerWhoseBytesAreNoEncoding)
{
  const Data garbage(1 << 16, std::byte{0xff});
  // Its values for worker 1 alone: the others hear it from worker 1, and so does worker 2.
  const auto fault = [&](std::span<PeerTransfer> transfers) {
    auto& outgoing = transfers[1].outgoing[1];
    outgoing = std::span(garbage).first(outgoing.size());
  };
  const auto result = exchanges_with_fault(Codec{CodecKind::Int8}, 1, fault);
  EXPECT_EQ(result.with[1].error, "outer exchange: worker 2: encoded values: a block has the scale -nan");
  for (const std::size_t worker : {0, 2, 3}) {
    EXPECT_EQ(result.with[worker].error, "outer exchange: worker 2: worker 1 reports its failure");
  }
  for (const std::size_t worker : {0, 1, 3}) EXPECT_EQ(result.without[worker].error, "");
}

TEST(Exchange, NamesAWorkerWhoseWeightIsNone)
{
  for (const double weight : {-1.0, std::numeric_limits<double>::quiet_NaN(), 1e300}) {
    std::array<std::byte, 8> bytes = {};
    for (std::size_t i = 0; i < 8; ++i)
      bytes[i] = static_cast<std::byte>(std::bit_cast<std::uint64_t>(weight) >> 8 * i);
    const auto fault = [&](std::span<PeerTransfer> transfers) {
      for (auto& transfer : transfers) transfer.outgoing[0] = bytes;
    };
    const Codec int8{CodecKind::Int8};
    expect_survival(int8, exchanges_with_fault(int8, 1, fault), fmt::format("its weight is {}", weight));
  }
}

TEST(Exchange, IsOfAscendingWorkersWithThisOneAmongThem)
{
  PostOffice office;
  InProcessPeers peers(office, 1);
  for (const std::vector<std::size_t>& workers :
       {std::vector<std::size_t>{0, 2}, std::vector<std::size_t>{1, 0}, std::vector<std::size_t>{1, 1}, {}}) {
    EXPECT_THROW(exchange_mean(peers, {}, {workers}, {}, {}), std::logic_error);
  }
  EXPECT_THROW(exchange_mean(peers, {}, {{1}, -1}, {}, {}), std::logic_error);
}

/// Parameters and their checksum after rounds of DiLoCo, of which each worker pulls them to a point of its own.
std::pair<Floats, std::uint32_t> trained(Peers& peers, const Codec& codec, const std::vector<Floats>& points)
{
  const std::size_t count = points[0].size();
  const Floats zeros(count);
  OuterOptimizer outer(zeros, zeros, {.learning_rate = 0.7F, .momentum = 0.5F});
  ErrorFeedback feedback(codec, Floats(count));
  Data bytes(encoded_bytes(codec, count));
  Floats mean(count);
  Floats average(count);
  constexpr int rounds = 300;
  for (int round = 0; round < rounds; ++round) {
    Floats own(outer.parameters().begin(), outer.parameters().end());
    for (int step = 0; step < 5; ++step) {
      for (std::size_t i = 0; i < count; ++i) own[i] += 0.02F * (points[peers.self()][i] - own[i]);
    }
    outer_gradient(outer.parameters(), own, mean);
    feedback.encode(mean, bytes);
    exchange_mean(peers, codec, {first_workers(points.size())}, bytes, mean);
    outer.update(0, mean);
    for (std::size_t i = 0; i < count && round >= rounds / 2; ++i) average[i] += outer.parameters()[i] * 2 / rounds;
  }
  return {average, outer.checksum()};
}

TEST(Exchange, KeepsWorkersThatTrainEqualAndTakesThemToTheirCommonOptimum)
{
  const auto points = gradients_of(3, 5000);
  const Floats optimum = mean_of(points, {1, 1, 1});
  for (const auto& text : all_codecs) {
    PostOffice office;
    std::vector<std::uint32_t> checksums(3);
    at_all(3, [&](std::size_t self) {
      InProcessPeers peers(office, self);
      const auto [average, checksum] = trained(peers, codec_from_text(text), points);
      checksums[self] = checksum;
      double square = 0;
      for (std::size_t i = 0; i < optimum.size(); ++i) {
        square += std::pow(static_cast<double>(average[i]) - static_cast<double>(optimum[i]), 2);
      }
      EXPECT_LT(std::sqrt(square / 5000), 0.1) << text;  // of points that are 1 from 0
    });
    EXPECT_EQ(checksums, std::vector<std::uint32_t>(3, checksums[0])) << text;
  }
}

/// Workers over loopback.
class ConnectedPeersTest : public testing::TestWithParam<bool> {
 protected:
  /// Runs `work(peers)` of each worker in a thread, and expects no error.
  void run(std::size_t workers, std::size_t connections, const std::function<void(Peers&)>& work)
  {
    Ranks ranks(workers);
    ranks.options.tls = GetParam();
    ranks.options.connections = connections;
    at_all(workers, [&](std::size_t self) {
      EXPECT_EQ(error_of([&] {
                  ConnectedPeers peers(self, ranks.endpoints, 7, ranks.options, std::move(ranks.listeners[self]));
                  work(peers);
                }),
                "");
    });
  }
};

INSTANTIATE_TEST_SUITE_P(OverTcp, ConnectedPeersTest, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(OverTls, ConnectedPeersTest, testing::Values(true));

TEST_P(ConnectedPeersTest, ExchangeWhatPeersInOneProcessDo)
{
  for (const std::string text : {"int8", "top-k 0.03 2-bit"}) {
    for (const std::size_t connections : {1, 3}) {
      const Codec codec = codec_from_text(text);
      constexpr std::size_t count = 1'500'001;
      const auto gradients = gradients_of(3, count);
      const auto expected = exchanged(codec, gradients, {1, 2, 3});
      run(3, connections, [&](Peers& peers) {
        for (int round = 0; round < 2; ++round) {
          const double weight = 1 + static_cast<double>(peers.self());
          const auto outcome = outcome_of(peers, codec, {{0, 1, 2}, weight}, gradients[peers.self()]);
          EXPECT_EQ(outcome.error, "");
          EXPECT_TRUE(bits_of(outcome.mean) == bits_of(expected[0].mean));
          const auto bytes = exchange_bytes(codec, count, peers.self(), 3);
          EXPECT_EQ(outcome.traffic.sent, bytes.sent + bytes.control);
          EXPECT_EQ(outcome.traffic.received, bytes.received + bytes.control);
        }
      });
    }
  }
}

TEST_P(ConnectedPeersTest, NameAWorkerThatLeavesAndContinueWithoutIt)
{
  const Codec codec{CodecKind::Int8};
  const auto gradients = gradients_of(4, 600'000);
  const auto expected = exchanged(codec, {gradients[0], gradients[1], gradients[3]}, {1, 1, 1})[0].mean;
  for (const int turn : {1, 2}) {
    run(4, 2, [&](Peers& peers) {
      const Floats& gradient = gradients[peers.self()];
      if (peers.self() == 2) {
        FaultyPeers faulty(peers, turn, [](std::span<PeerTransfer>) { throw Gone(); });
        outcome_of(faulty, codec, {{0, 1, 2, 3}}, gradient);
        return;
      }
      const auto with = outcome_of(peers, codec, {{0, 1, 2, 3}}, gradient);
      EXPECT_THAT(with.failed, ElementsAre(2));
      EXPECT_THAT(with.error,
                  AllOf(HasSubstr("outer exchange: worker 2: 0 of "), HasSubstr("connection closed by the peer")));
      const auto without = outcome_of(peers, codec, {{0, 1, 3}}, gradient);
      EXPECT_EQ(without.error, "");
      EXPECT_TRUE(bits_of(without.mean) == bits_of(expected));
    });
  }
}

TEST_P(ConnectedPeersTest, NameAWorkerThatIsSilent)
{
  const Codec codec{CodecKind::Int8};
  const auto gradients = gradients_of(3, 10'000);
  run(3, 1, [&](Peers& peers) {
    if (peers.self() == 2) return pause(5 * little.value);
    const auto with = outcome_of(peers, codec, {{0, 1, 2}, 1, little}, gradients[peers.self()]);
    EXPECT_THAT(with.failed, ElementsAre(2));
    EXPECT_THAT(with.error, AllOf(HasSubstr("worker 2: 0 of "), HasSubstr(": deadline of 0.2 s passed")));
    EXPECT_EQ(outcome_of(peers, codec, {{0, 1}}, gradients[peers.self()]).error, "");
  });
}

TEST_P(ConnectedPeersTest, RefuseAMessageOfAnotherLength)
{
  run(2, 1, [&](Peers& peers) {
    const Data sent(peers.self() == 0 ? 5 : 3);
    Data received(4);
    std::vector<PeerTransfer> transfers(1);
    transfers[0].worker = 1 - peers.self();
    transfers[0].outgoing = {sent};
    transfers[0].incoming = {received};
    peers.exchange(transfers, plenty);
    if (!transfers[0].failure) {
      ADD_FAILURE() << "a message of another length was taken";
    } else if (transfers[0].failure->kind == Failure::Kind::Other) {  // not the one whose peer has closed before
      EXPECT_EQ(transfers[0].failure->text, fmt::format("0 of 4 B received, {0} of {0} B sent: its message has {1} B",
                                                        sent.size(), 8 - sent.size()));
    }
    peers.exchange(transfers, plenty);
    EXPECT_TRUE(transfers[0].failure.has_value());
  });
}

}  // namespace
}  // namespace isobar::exec::exchange_test
