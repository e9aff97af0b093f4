#include "core/program/program.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace isobar {
namespace {

TEST(OtherEnd, PairsTheLanesOfEachPayload)
{
  EXPECT_EQ(other_end(Lane::SendActivation), Lane::ReceiveActivation);
  EXPECT_EQ(other_end(Lane::SendGradient), Lane::ReceiveGradient);
  for (const Lane lane : all_lanes) {
    if (lane == Lane::Compute) continue;
    EXPECT_EQ(other_end(other_end(lane)), lane) << name_of(lane);
  }
}

TEST(OtherEnd, DoesNotExistForTheComputeLane)
{
  EXPECT_THROW(other_end(Lane::Compute), std::logic_error);
}

}  // namespace
}  // namespace isobar
