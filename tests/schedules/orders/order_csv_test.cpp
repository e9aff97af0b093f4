#include "schedules/orders/order_csv.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/order/order_text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace isobar::schedules::order_csv_test {
namespace {

using testing::ElementsAre;

/// Megatron's interleaved schedule of 2 devices with 2 stages each, for 4 micro-batches.
constexpr auto interleaved =
    "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3\n"
    "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3\n";

TEST(OrdersFromCsv, FindsRanksStagesAndLoops)
{
  const auto read = orders_from_csv(interleaved, "orders.csv");
  EXPECT_THAT(read.shape.devices, ElementsAre("0", "1"));
  EXPECT_THAT(read.shape.rank_of_stage, ElementsAre(0U, 1U, 0U, 1U));
  EXPECT_EQ(read.shape.microbatches, 4U);
  ASSERT_EQ(read.orders.size(), 2U);
  EXPECT_THAT(run_texts_of(read.orders[0]),
              ElementsAre(RunText{2, "F0.0+"}, RunText{2, "F1.0+"}, RunText{2, "F0.2+ B1.0+"},
                          RunText{2, "F1.2+ B0.0+"}, RunText{2, "B1.2+"}, RunText{2, "B0.2+"}));
  EXPECT_THAT(run_texts_of(read.orders[1]),
              ElementsAre(RunText{2, "F0.0+"}, RunText{2, "F1.0+ B1.0+"}, RunText{2, "F0.2+ B0.0+"},
                          RunText{2, "F1.2+ B1.2+"}, RunText{2, "B0.2+"}));
}

TEST(OrdersFromCsv, SkipsEmptyCellsAndBlanks)
{
  const auto read = orders_from_csv("0F0, ,0F1,,,0B0,0B1\r\n,1F0,1B0,1F1,1B1,,\r\n", "orders.csv");
  EXPECT_EQ(orders_to_csv(read.shape, read.orders), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
}

TEST(OrdersFromCsv, SkipsAByteOrderMark)
{
  const auto read = orders_from_csv(
      "\xEF\xBB\xBF"
      "0F0,0B0\n",
      "orders.csv");
  EXPECT_EQ(orders_to_csv(read.shape, read.orders), "0F0,0B0\n");
}

TEST(OrdersFromCsv, SkipsTransfersAndTheWorkOnShardedParameters)
{
  // torch 2.11: the beginning and the end of ScheduleInterleaved1F1B(…)._dump_csv, and what later versions add.
  const auto read = orders_from_csv(
      "0UNSHARD,2UNSHARD,0F0,0SEND_F0,0WAIT_SEND_F0,2RECV_F0,2F0,2SEND_F0,2RECV_B0,2B0,2SEND_B0,2WAIT_SEND_B0,"
      "2REDUCE_GRAD,2RESHARD,0RECV_B0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD\r\n"
      "1UNSHARD,3UNSHARD,1RECV_F0,1F0,1SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,3REDUCE_GRAD,3RESHARD,1RECV_B0,1B0,1SEND_B0,"
      "1REDUCE_GRAD,1RESHARD\r\n",
      "orders.csv");
  EXPECT_EQ(orders_to_csv(read.shape, read.orders), "0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n");
}

/// torch 2.11: ScheduleDualPipeV of two ranks and four micro-batches, by _dump_csv.
constexpr auto dual_pipe_v =
    "0UNSHARD,3UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,0F2,0SEND_F2,3F0,3RECV_F1,3I0,3SEND_B0,3W0,3F1,3RECV_F2,"
    "0RECV_B0,(0F3;3B1)OVERLAP_F_B,0SEND_F3,3SEND_B1,(3F2;0B0)OVERLAP_F_B,3RECV_F3,0RECV_B1,3B2,3SEND_B2,"
    "(3F3;0B1)OVERLAP_F_B,0RECV_B2,3B3,3SEND_B3,3REDUCE_GRAD,0RECV_B3,3RESHARD,0I2,0W2,0I3,0W3,0REDUCE_GRAD,"
    "0RESHARD\r\n"
    "1UNSHARD,2UNSHARD,1RECV_F0,1F0,1RECV_F1,2F0,2SEND_F0,1RECV_F2,1F1,2F1,2SEND_F1,2RECV_B0,1F2,2B0,"
    "(2F2;1B0)OVERLAP_F_B,2SEND_F2,1SEND_B0,1RECV_F3,2RECV_B1,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)OVERLAP_F_B,2SEND_F3,"
    "1SEND_B1,2RECV_B2,2B2,1B2,1SEND_B2,2RECV_B3,2I3,1I3,1SEND_B3,2W3,2REDUCE_GRAD,2RESHARD,1W3,1REDUCE_GRAD,"
    "1RESHARD\r\n";

TEST(OrdersFromCsv, ReadsOverlapsAndWholeBackwardsBesideHalvesAsHalves)
{
  const auto read = orders_from_csv(dual_pipe_v, "orders.csv");
  EXPECT_EQ(
      orders_to_csv(read.shape, read.orders),
      "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3I2,3W2,(3F3;0B1)OVERLAP_F_B,3I3,3W3,"
      "0I2,0W2,0I3,0W3\n"
      "1F0,2F0,1F1,2F1,1F2,2I0,2W0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)OVERLAP_F_B,2I2,2W2,1I2,1W2,"
      "2I3,1I3,2W3,1W3\n");
}

TEST(OrdersFromCsv, ReadsDualPipeVOfTorchAsOursWithPairs)
{
  // By torch 2.11's ScheduleDualPipeV of four ranks and ten micro-batches, _dump_csv in the form compute_only.
  const std::vector<std::string> files = {dual_pipe_v,
                                          read_file(ISOBAR_SOURCE_DIR "/tests/instances/torch_dualpipe_v.csv")};
  for (const auto& file : files) {
    const auto read = orders_from_csv(file, "orders.csv");
    const ScheduleChoice choice = {"dualpipe-v", {{std::string(overlap_experts_key), {1}}}};
    const auto own = require_schedule("dualpipe-v").orders(read.shape, choice);
    const auto again = orders_from_csv(orders_to_csv(read.shape, own), "again.csv");
    for (std::size_t rank = 0; rank < own.size(); ++rank) {
      EXPECT_TRUE(has_overlaps(own[rank]));
      const auto wanted = listed_tasks(own[rank]);
      for (const Order* order : {&read.orders[rank], &again.orders[rank]}) {
        const auto tasks = listed_tasks(*order);
        ASSERT_EQ(tasks.size(), wanted.size());
        std::size_t other_pairs = 0;
        for (std::size_t i = 0; i < tasks.size(); ++i) {
          ASSERT_EQ(tasks[i].task, wanted[i].task) << "rank " << rank << ", " << i;
          other_pairs += tasks[i].overlaps == wanted[i].overlaps ? 0 : 1;
        }
        // torch runs the first pair of the last rank in turn.
        const bool is_last_of_torch = order == &read.orders[rank] && rank + 1 == own.size();
        EXPECT_EQ(other_pairs, is_last_of_torch ? 1U : 0U) << "rank " << rank;
      }
    }
  }
}

TEST(OrdersToCsv, RefusesHalvesThatAReaderWouldTakeForWholePasses)
{
  const PipelineShape shape{{"a"}, {0}, 2};
  const Order order(std::vector<isobar::Run>{{1,
                                              {{{Opcode::Forward, 0, 0}},
                                               {{Opcode::Forward, 0, 1}, 1, true},
                                               {{Opcode::BackwardInput, 0, 0}},
                                               {{Opcode::BackwardWeight, 0, 0}}}}});
  EXPECT_THAT(
      [&] { orders_to_csv(shape, {order}); },
      testing::ThrowsMessage<InputError>("schedule: stage 0 has halves of backward passes beside forward passes "
                                         "alone, which a CSV file cannot say; use --json"));
}

TEST(OrdersFromCsv, TellsWholeBackwardsFromHalves)
{
  const auto read = orders_from_csv("0F0,1F0,1B0,0I0,0W0\n", "orders.csv");
  EXPECT_EQ(read.orders[0].at(2).opcode, Opcode::Backward);
  EXPECT_EQ(read.orders[0].at(3).opcode, Opcode::BackwardInput);
  EXPECT_EQ(read.orders[0].at(4).opcode, Opcode::BackwardWeight);
}

TEST(OrdersFromCsv, NumbersPartsByTheirStages)
{
  // As zero-bubble-v folds its stages: rank 0 has stages 0 and 3.
  const auto read = orders_from_csv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n", "orders.csv");
  EXPECT_THAT(read.shape.rank_of_stage, ElementsAre(0U, 1U, 1U, 0U));
  EXPECT_EQ(read.orders[0].at(1), (Task{Opcode::Forward, 1, 0}));
  EXPECT_EQ(read.orders[1].at(1), (Task{Opcode::Forward, 1, 0}));
}

TEST(OrdersToCsv, WritesWhatWasRead)
{
  const auto read = orders_from_csv(interleaved, "orders.csv");
  EXPECT_EQ(orders_to_csv(read.shape, read.orders), interleaved);
}

TEST(OrdersToCsv, RefusesMoreCellsThanAreRead)
{
  const std::uint64_t microbatches = most_csv_cells;
  const PipelineShape shape{{"d0"}, {0}, microbatches};
  const std::vector<Slot> slots = {{{Opcode::Forward, 0, 0}, 1}, {{Opcode::Backward, 0, 0}, 1}};
  const Order order(std::vector<isobar::Run>{{microbatches, slots}});
  EXPECT_THAT(
      [&] { orders_to_csv(shape, {order}); },
      testing::ThrowsMessage<InputError>("schedule: has 8000000 tasks, and a CSV file at most 4000000; use --json"));
}

struct BadFile {
  std::string text;
  std::string message;
};

TEST(OrdersFromCsv, RefusesEachFaultWithItsPlace)
{
  const std::vector<BadFile> files = {
      {"", "orders.csv:1: the file is empty; write a row for each rank, such as 0F0,0B0"},
      {"0F0,0B0\n1F0,1X0\n",
       "orders.csv:2: column 2: \"1X0\" is not a task; write the stage, F, B, I or W, and the "
       "micro-batch, such as 2F0"},
      {"0F0,0B00\n",
       "orders.csv:1: column 2: \"0B00\" is not a task; write the stage, F, B, I or W, and the "
       "micro-batch, such as 2F0"},
      {"0F0,0B1234567890\n",
       "orders.csv:1: column 2: \"0B1234567890\" is not a task; write the stage, F, B, I or W, and "
       "the micro-batch, such as 2F0"},
      {"0F0,0SEND_F0x\n",
       "orders.csv:1: column 2: \"0SEND_F0x\" is not a task; write the stage, F, B, I or W, and the micro-batch, such "
       "as "
       "2F0"},
      {"0F0,0SEND\n",
       "orders.csv:1: column 2: \"0SEND\" is not a task; write the stage, F, B, I or W, and the micro-batch, such as "
       "2F0"},
      {"0F0,(0F1;0B0)OVERLAP\n",
       "orders.csv:1: column 2: \"(0F1;0B0)OVERLAP\" is not a task; write the stage, F, B, I or W, and the "
       "micro-batch, "
       "such as 2F0"},
      {"0F0,(0F1;;0B0)OVERLAP_F_B\n",
       "orders.csv:1: column 2: \"(0F1;;0B0)OVERLAP_F_B\" is no forward and backward; write both, such as "
       "(2F1;1B0)OVERLAP_F_B"},
      {"0F0,(;)OVERLAP_F_B\n",
       "orders.csv:1: column 2: \"(;)OVERLAP_F_B\" is no forward and backward; write both, such as "
       "(2F1;1B0)OVERLAP_F_B"},
      {"0F0,(0B0;0F1)OVERLAP_F_B\n",
       "orders.csv:1: column 2: \"(0B0;0F1)OVERLAP_F_B\" is no forward and backward; write both, such as "
       "(2F1;1B0)OVERLAP_F_B"},
      {"0UNSHARD,0RESHARD\n", "orders.csv:1: row: rank 0 has no task; remove the line"},
      // torch 2.11: Schedule1F1B numbers the last rank's forwards from 1.
      {"0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3,0REDUCE_GRAD\n1F1,1B0,1F2,1B1,1F3,1B2,1F4,1B3,1REDUCE_GRAD\n",
       "orders.csv:2: row: stage 1 has B of micro-batch 0; it has F and B of each, or F, I and W, once"},
      {"0F0,0B0\n\n1F0,1B0\n", "orders.csv:2: row: rank 1 has no task; remove the line"},
      {"0F0,0B0\n1F0,0F1,1B0\n",
       "orders.csv:2: column 2: stage 0 is on rank 0 already, in line 1; a stage has one rank"},
      {"0F0,0B0\n2F0,2B0\n", "orders.csv:2: stage 1 is on no rank, but stage 2 is on rank 1"},
      {"0F0,0F1,0B0\n",
       "orders.csv:1: row: stage 0 has F of micro-batch 1; it has F and B of each, or F, I and W, once"},
      {"0F0,0B0\n1F1,1B1,1F0,1B0\n",
       "orders.csv:1: row: stage 0 has nothing of micro-batch 1; it has F and B of each, or F, I and W, once"},
      {"0F0,0F0,0B0\n",
       "orders.csv:1: row: stage 0 has B, F, F of micro-batch 0; it has F and B of each, or F, I and W, once"},
      {"0F0,0B0,0W0\n",
       "orders.csv:1: row: stage 0 has B, F, W of micro-batch 0; it has F and B of each, or F, I and W, once"},
      {"0F0,\"0B0\n", "orders.csv:1: row: has a control character or an open quote; write plain text between commas"},
  };
  for (const auto& [text, message] : files) {
    EXPECT_THAT([&text = text] { orders_from_csv(text, "orders.csv"); }, testing::ThrowsMessage<InputError>(message));
  }
}

TEST(OrdersFromCsv, RefusesUnsoundOrdersWithTheTasksAndColumnsOfTheFile)
{
  const std::vector<BadFile> files = {
      {"0F0,0B0\n,1B0,,1F0\n", "orders.csv:2: rank 1: 1B0 (column 2) comes before 1F0 (column 4); move it behind"},
      {"0F0,2F0,0B0,2B0\n1F0,1B0\n",
       "orders.csv:2: 0B0 (column 3) of rank 0 waits for 1B0 (column 2) of rank 1, 1B0 (column 2) of rank 1 waits for "
       "2B0 (column 4) of rank 0, so none of them can run; move an awaited one forward"},
      {"0B0,0F0,0F1,0I1,0W1\n", "orders.csv:1: rank 0: 0B0 (column 1) comes before 0F0 (column 2); move it behind"},
      {"0F0,(1F0;1B0)OVERLAP_F_B,0B0\n",
       "orders.csv:1: rank 0: 1F0 (column 2) and 1B0 (column 2) are of one micro-batch and cannot run together; leave "
       "the "
       "mark of the forward pass out"},
      // In turn these run: rank 1 needs the forward's end, for which the pair of rank 0 needs rank 1's backward.
      {"0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n",
       "orders.csv:2: 0F1 (column 2) of rank 0 waits for 1B0 (column 3) of rank 1, 1F1 (column 2) of rank 1 waits for "
       "0F1 "
       "(column 2) of rank 0, so none of them can run; move an awaited one forward"},
      {"0F0,0F1,0B0,0B1\n1F1,1B1,1F0,1B0\n",
       "orders.csv:2: rank 0 has 0F0 (column 1) before 0F1 (column 2) and rank 1 has 1F1 (column 1) before 1F0 (column "
       "3), so their transfers cross; use one order for both\norders.csv:2: rank 1 has 1B1 (column 2) before 1B0 "
       "(column "
       "4) and rank 0 has 0B0 (column 3) before 0B1 (column 4), so their transfers cross; use one order for both"},
  };
  for (const auto& [text, message] : files) {
    EXPECT_THAT([&text = text] { orders_from_csv(text, "orders.csv"); }, testing::ThrowsMessage<InputError>(message));
  }
}

TEST(OrdersFromCsv, ShowsTheFirstFaultsAndCountsTheOthers)
{
  try {
    orders_from_csv(std::string(100'000, '\n'), "orders.csv");
    FAIL();
  } catch (const InputError& fault) {
    const std::string text = fault.what();
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 20);
    EXPECT_THAT(text, testing::StartsWith("orders.csv:1: row: rank 0 has no task; remove the line\n"));
    EXPECT_THAT(text, testing::EndsWith("\norders.csv:20: row: rank 19 has no task; remove the line\n"
                                        "orders.csv: and 99980 more"));
  }
}

TEST(OrdersFromCsv, RefusesMoreCellsThanItsLimitBeforeItReadsThem)
{
  EXPECT_THAT(
      [] { orders_from_csv(std::string(most_csv_cells, ','), "orders.csv"); },
      testing::ThrowsMessage<InputError>("orders.csv:1: row: the table has more than 4000000 cells; write fewer"));
}

}  // namespace
}  // namespace isobar::schedules::order_csv_test
