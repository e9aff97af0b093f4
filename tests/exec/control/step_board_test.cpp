#include "exec/control/step_board.hpp"

#include "core/failure.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace isobar::exec::step_board_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::MatchesRegex;

constexpr Seconds plenty(60);
constexpr Seconds little(0.2);

void expect_control(const StepControl& found, bool checkpoint, bool end)
{
  EXPECT_EQ(found.checkpoint, checkpoint);
  EXPECT_EQ(found.end, end);
}

Failure failure_of_await(StepBoard& board, Phase phase, std::uint64_t step, Seconds limit)
{
  try {
    board.await(phase, step, limit);
  } catch (const std::exception& error) {
    return failure_of(error);
  }
  return {};
}

TEST(StepBoard, KeepsTheDecisionsOfEachPhase)
{
  StepBoard board;
  board.decide(Phase::Training, 7, {.checkpoint = true, .end = false});
  board.decide(Phase::Training, 8, {});
  board.decide(Phase::Training, 9, {.checkpoint = true, .end = true});
  board.decide(Phase::Evaluation, 0, {});
  expect_control(board.await(Phase::Training, 7, little), true, false);
  expect_control(board.await(Phase::Training, 8, little), false, false);
  expect_control(board.await(Phase::Training, 9, little), true, true);
  expect_control(board.await(Phase::Evaluation, 0, little), false, false);
  EXPECT_EQ(failure_of_await(board, Phase::Evaluation, 1, little).kind, Failure::Kind::DeadlinePassed);
}

TEST(StepBoard, MakesSeveralThreadsWaitForADecision)
{
  StepBoard board;
  std::vector<StepControl> found(4);
  {
    std::vector<std::jthread> threads;
    for (auto& control : found) {
      threads.emplace_back([&board, &control] { control = board.await(Phase::Training, 1, plenty); });
    }
    board.decide(Phase::Training, 0, {});
    board.decide(Phase::Training, 1, {.checkpoint = false, .end = true});
  }
  for (const auto& control : found) expect_control(control, false, true);
}

TEST(StepBoard, SendsTheDecisionsOfRankZeroToTheBoardsOfTheOthers)
{
  StepBoard first(0);
  StepBoard other(2);
  std::vector<std::string> sent_by_other;
  first.send_by([&](const std::string& message) { EXPECT_TRUE(other.receive(message)) << message; });
  other.send_by([&](const std::string& message) { sent_by_other.push_back(message); });
  first.decide(Phase::Training, 3, {.checkpoint = true, .end = false});
  first.decide(Phase::Evaluation, 0, {.checkpoint = false, .end = true});
  expect_control(other.await(Phase::Training, 3, little), true, false);
  expect_control(other.await(Phase::Evaluation, 0, little), false, true);
  EXPECT_THAT(sent_by_other, IsEmpty());
}

TEST(StepBoard, SendsARequestToStopOnceToTheBoardOfRankZero)
{
  StepBoard first(0);
  StepBoard other(1);
  std::vector<std::string> sent_by_first;
  std::vector<std::string> sent_by_other;
  first.send_by([&](const std::string& message) { sent_by_first.push_back(message); });
  other.send_by([&](const std::string& message) {
    sent_by_other.push_back(message);
    EXPECT_TRUE(first.receive(message));
  });
  EXPECT_FALSE(first.stop_is_requested());
  other.request_stop();
  other.request_stop();
  EXPECT_TRUE(first.stop_is_requested());
  EXPECT_THAT(sent_by_other, ElementsAre("stop"));
  first.request_stop();
  EXPECT_THAT(sent_by_first, IsEmpty());
}

TEST(StepBoard, RefusesMessagesThatNoRankSends)
{
  StepBoard first(0);
  StepBoard other(1);
  for (const char* message : {"", "step", "step [0,1,true,false]", "go", "stop "})
    EXPECT_FALSE(first.receive(message)) << message;
  for (const char* message :
       {"", "stop", "step ", "step [0,1,true]", "step [0,1,true,false,0]", "step [2,1,true,false]",
        "step [0,-1,true,false]", "step [0,1,1,false]", "step [0,1.5,true,false]", "step {}"}) {
    EXPECT_FALSE(other.receive(message)) << message;
  }
  EXPECT_FALSE(first.stop_is_requested());
  EXPECT_EQ(failure_of_await(other, Phase::Training, 1, little).kind, Failure::Kind::DeadlinePassed);
}

TEST(StepBoard, EndsAWaitAtItsDeadlineAndNamesWhoWaitsForWhom)
{
  StepBoard board(2);
  const Failure failure = failure_of_await(board, Phase::Training, 0, little);
  EXPECT_EQ(failure.kind, Failure::Kind::DeadlinePassed);
  EXPECT_THAT(failure.text, MatchesRegex("rank 2: no word from rank 0 after 0\\.[0-9]+ s: deadline passed"));
  int asked = 0;
  const Deadline unless_at_work(little, [&asked] { return Seconds(++asked < 5 ? 0 : 1); });
  EXPECT_THROW(board.await(Phase::Training, 0, unless_at_work), EnvironmentError);
  EXPECT_GE(asked, 5);  // the wait goes on while a rank is at work
}

TEST(StepBoard, EndsAllWaitsWhenItIsCancelled)
{
  StepBoard board(1);
  const std::jthread canceller([&board] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    board.cancel();
  });
  EXPECT_EQ(failure_of_await(board, Phase::Training, 0, plenty).kind, Failure::Kind::Cancelled);
  EXPECT_EQ(failure_of_await(board, Phase::Evaluation, 0, plenty).kind, Failure::Kind::Cancelled);
}

std::string text_of_turns(StepBoard& board)
{
  try {
    board.check_turns();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(StepBoard, FindsRanksThatHaveATurnInAnotherOrder)
{
  StepBoard board;
  for (const std::size_t rank : {1, 0, 2}) board.add_turn(4, rank, 9);
  EXPECT_EQ(text_of_turns(board), "");
  board.add_turn(5, 1, 12);
  board.add_turn(5, 0, 11);
  const std::string found =
      "turn 5 has number 12 on rank 1 and 11 on rank 0; all devices must grant turns in one order, so give all ranks "
      "the "
      "same mix";
  EXPECT_EQ(text_of_turns(board), found);
  board.add_turn(6, 0, 13);
  EXPECT_EQ(text_of_turns(board), found);
}

TEST(StepBoard, SendsTheNumbersOfTurnsToRankZero)
{
  StepBoard first;
  StepBoard second(2);
  second.send_by([&](const std::string& message) { EXPECT_TRUE(first.receive(message)); });
  first.add_turn(0, 0, 1);
  second.add_turn(0, 2, 3);
  EXPECT_EQ(text_of_turns(second), "");
  EXPECT_EQ(text_of_turns(first).substr(0, 47), "turn 0 has number 1 on rank 0 and 3 on rank 2; ");
  for (const char* message : {"turn ", "turn []", "turn [1,2]", "turn [1,2,-3]", "turn [1,2,\"3\"]"}) {
    EXPECT_FALSE(first.receive(message)) << message;
  }
}

TEST(StepBoard, AlsoCancelsWhatElseWaits)
{
  StepBoard board;
  bool cancelled = false;
  board.also_cancel([&] { cancelled = true; });
  board.cancel();
  EXPECT_TRUE(cancelled);
}

TEST(StepBoard, AddsUpTheLossesOfOtherRanksInTheOrderOfRanks)
{
  StepBoard board;
  EXPECT_TRUE(board.has_losses(3, 0));
  EXPECT_FALSE(board.has_losses(3, 3));
  // In another order the sum is 1.
  board.add_loss(3, 3, -1e16);
  board.add_loss(3, 1, 1e16);
  EXPECT_FALSE(board.has_losses(3, 3));
  board.add_loss(3, 2, 1);
  EXPECT_TRUE(board.has_losses(3, 3));
  EXPECT_EQ(board.await_losses(3, 3, little), 0);
  EXPECT_FALSE(board.has_losses(3, 3)) << "they are taken once";
}

TEST(StepBoard, SendsLossesToRankZero)
{
  std::vector<std::string> sent;
  StepBoard own(2);
  own.send_by([&](const std::string& message) { sent.push_back(message); });
  own.add_loss(4, 2, 0.1);
  own.add_loss(5, 2, std::numeric_limits<double>::infinity());
  EXPECT_THAT(sent, ElementsAre("loss [4,2,0.1]", "loss [5,2,null]"));
  StepBoard zero;
  for (const auto& message : sent) EXPECT_TRUE(zero.receive(message));
  EXPECT_EQ(zero.await_losses(4, 1, little), 0.1);
  EXPECT_TRUE(std::isnan(zero.await_losses(5, 1, little)));
  for (const char* wrong : {"loss [4,2]", "loss [4,2,true]", "loss [-4,2,1]", "loss 4"}) {
    EXPECT_FALSE(zero.receive(wrong)) << wrong;
  }
}

TEST(StepBoard, SaysThatALossIsMissing)
{
  StepBoard board;
  board.add_loss(0, 1, 1);
  const auto failure_of_losses = [&] {
    try {
      board.await_losses(0, 2, Seconds(0.05));
    } catch (const std::exception& error) {
      return failure_of(error);
    }
    return Failure();
  };
  const Failure late = failure_of_losses();
  EXPECT_EQ(late.kind, Failure::Kind::DeadlinePassed);
  EXPECT_THAT(late.text, MatchesRegex("rank 0: no loss of another rank after .* s: deadline passed"));
  board.cancel();
  EXPECT_EQ(failure_of_losses().kind, Failure::Kind::Cancelled);
}

}  // namespace
}  // namespace isobar::exec::step_board_test
