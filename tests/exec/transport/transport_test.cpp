#include "exec/transport/transport.hpp"

#include "core/failure.hpp"
#include "exec/transport/tcp_transport.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/exec/model/small_models.hpp"
#include "tests/exec/run/even_split.hpp"
#include "tests/support/unit_devices.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <array>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>
#include <vector>

namespace isobar::exec::transport_test {
namespace {

using testing::ElementsAre;

constexpr Seconds plenty(60);

/// Three stages with a gradient sync. Channels 0 and 2 carry activations, 1 and 3 gradients back, 4 the sync.
std::unique_ptr<Program> three_stages()
{
  Workload workload = small_gpt();
  workload.training.clip_norm = 1;
  return testing_support::unit_program(even_split(workload, 3, ChainSchedule::OneForwardOneBackward, 2), workload);
}

TEST(Channels, OfTransfersAreLinksAndOfCollectivesGroups)
{
  const auto program = three_stages();
  EXPECT_THAT(links_of(*program),
              ElementsAre(LinkName{0, 1, 0}, LinkName{1, 0, 1}, LinkName{1, 2, 2}, LinkName{2, 1, 3}));
  const auto groups = groups_of(*program);
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].channel, 4U);
  EXPECT_THAT(groups[0].ranks, ElementsAre(0, 1, 2));
}

TEST(InProcessTransport, HandsMessagesOverOnTheirOwnChannels)
{
  const auto program = three_stages();
  const auto transports = in_process_transports(*program, plenty);
  const auto message_of = [](float value) {
    Message message;
    message.tensors = {at::full({2}, value)};
    message.differentiable = {true};
    return message;
  };
  {
    // Both wait at rank 1, the later one first.
    const std::jthread to_middle([&] { transports[0]->send(0, {}, message_of(7)); });
    const std::jthread back_to_middle([&] { transports[2]->send(3, {}, message_of(8)); });
    const Message gradient = transports[1]->receive(3, {});
    const Message activation = transports[1]->receive(0, {});
    EXPECT_EQ(gradient.tensors.at(0)[0].item<float>(), 8);
    EXPECT_EQ(activation.tensors.at(0)[0].item<float>(), 7);
  }
}

Instruction instruction_of(Opcode opcode)
{
  Instruction instruction;
  instruction.opcode = opcode;
  return instruction;
}
const Instruction all_reduce = instruction_of(Opcode::AllReduce);

TEST(InProcessTransport, SumsInTheOrderOfRanksWhicheverArrivesFirst)
{
  const auto program = three_stages();
  const auto transports = in_process_transports(*program, plenty);
  constexpr std::array<double, 3> own = {1e16, 1, -1e16};  // in another order the sum is 1
  std::array<Tensors, 3> sums;
  for (std::size_t late = 0; late < 3; ++late) {
    {
      std::vector<std::jthread> ranks;
      for (std::size_t rank = 0; rank < 3; ++rank) {
        ranks.emplace_back([&, rank] {
          if (rank == late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
          sums[rank] = {at::full({1}, own[rank], at::kDouble), at::ones({2}, at::kDouble)};
          transports[rank]->collective(4, all_reduce, sums[rank]);
        });
      }
    }
    for (const auto& sum : sums) {
      EXPECT_EQ(sum[0].item<double>(), 0) << late;
      EXPECT_TRUE(at::equal(sum[1], at::full({2}, 3, at::kDouble))) << late;
    }
  }
}

TEST(InProcessTransport, ScattersSumsAndGathersParts)
{
  const auto program = three_stages();
  const auto transports = in_process_transports(*program, plenty);
  std::array<Tensors, 3> sums;
  std::array<Tensors, 3> gathered;
  {
    std::vector<std::jthread> ranks;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        const double own = std::pow(10, double(rank));
        sums[rank] = {at::arange(2, at::kDouble) * own, (at::arange(2, 5, at::kDouble) * own).view({3, 1})};
        transports[rank]->collective(4, instruction_of(Opcode::ReduceScatter), sums[rank]);
        gathered[rank] = {at::full({2, 2}, own, at::kDouble), at::full({1}, own, at::kDouble)};
        transports[rank]->collective(4, instruction_of(Opcode::AllGather), gathered[rank]);
      });
    }
  }
  // Of 5 values the ranks have the parts 0 to 0, 1 to 2, and 3 to 4.
  EXPECT_EQ(sums[0][0][0].item<double>(), 0);
  EXPECT_EQ(sums[1][0][1].item<double>(), 111);
  EXPECT_EQ(sums[1][1][0].item<double>(), 222);
  EXPECT_EQ(sums[2][1][1].item<double>(), 333);
  EXPECT_EQ(sums[2][1][2].item<double>(), 444);
  for (const auto& tensors : gathered) {
    EXPECT_TRUE(at::equal(tensors[0], at::tensor({1., 10., 10., 100.}, at::kDouble).view({2, 2})));
    EXPECT_EQ(tensors[1].item<double>(), 100);
  }
}

/// What end `from` sends to end `to`: as many numbers as both say, some none.
at::Tensor sent_by(std::size_t from, std::size_t to)
{
  const auto count = static_cast<std::int64_t>((2 * from + to) % 3);
  return at::full({count, 2}, static_cast<double>(10 * from + to), at::kFloat);
}

TEST(InProcessTransport, ExchangesUnequalAndEmptyTensors)
{
  const auto program = three_stages();
  const auto transports = in_process_transports(*program, plenty);
  constexpr std::size_t ends = 3;
  for (int repetition = 0; repetition < 2; ++repetition) {
    std::array<Tensors, ends> received;
    {
      std::vector<std::jthread> ranks;
      for (std::size_t rank = 0; rank < ends; ++rank) {
        ranks.emplace_back([&, rank] {
          Tensors outgoing;
          for (std::size_t other = 0; other < ends; ++other) {
            outgoing.push_back(sent_by(rank, other));
            received[rank].push_back(at::zeros_like(sent_by(other, rank)));
          }
          transports[rank]->exchange(4, instruction_of(Opcode::AllToAll), outgoing, received[rank]);
        });
      }
    }
    for (std::size_t rank = 0; rank < ends; ++rank) {
      for (std::size_t other = 0; other < ends; ++other) {
        if (other == rank) continue;
        EXPECT_TRUE(at::equal(received[rank][other], sent_by(other, rank))) << other << " to " << rank;
      }
    }
  }
}

TEST(InProcessTransport, EndsAllWaitsWhenOneRankIsCancelled)
{
  const auto program = three_stages();
  const auto transports = in_process_transports(*program, plenty);
  const auto kind_of = [](const auto& work) {
    try {
      work();
    } catch (const std::exception& error) {
      return failure_of(error).kind;
    }
    return Failure::Kind::Other;
  };
  std::array<Failure::Kind, 2> kinds = {};
  {
    const std::jthread receiver([&] { kinds[0] = kind_of([&] { transports[1]->receive(0, {}); }); });
    const std::jthread reducer(
        [&] { kinds[1] = kind_of([&] { transports[2]->collective(4, all_reduce, {at::ones({1}, at::kDouble)}); }); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    transports[0]->cancel();
  }
  EXPECT_THAT(kinds, ElementsAre(Failure::Kind::Cancelled, Failure::Kind::Cancelled));
}

}  // namespace
}  // namespace isobar::exec::transport_test
