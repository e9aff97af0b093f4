#include "exec/transport/transport_choice.hpp"

#include "core/errors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isobar::exec::transport_choice_test {
namespace {

using testing::ThrowsMessage;

constexpr Reach one{.nccl = 22809, .machine = 1, .gpu = 1};

TEST(TransportChoice, IsReadFromItsName)
{
  for (const auto choice : {TransportChoice::Tcp, TransportChoice::Nccl, TransportChoice::Auto}) {
    EXPECT_EQ(transport_from_text(name_of(choice)), choice);
  }
  EXPECT_THAT([] { transport_from_text("NCCL"); },
              ThrowsMessage<InputError>("--transport: \"NCCL\" is not a transport; write tcp, nccl or auto"));
}

TEST(TransportChoice, AutoUsesNcclBetweenGpusOfOneMachine)
{
  const Reach other_gpu{.nccl = 22809, .machine = 1, .gpu = 2};
  EXPECT_EQ(why_not_nccl(one, other_gpu, TransportChoice::Auto), "");
  EXPECT_EQ(why_not_nccl(one, one, TransportChoice::Auto), "the same GPU");
  EXPECT_EQ(why_not_nccl(one, {.nccl = 22809, .machine = 2, .gpu = 1}, TransportChoice::Auto), "two machines");
}

TEST(TransportChoice, UsesNcclBetweenMachinesOnRequest)
{
  EXPECT_EQ(why_not_nccl(one, {.nccl = 22809, .machine = 2, .gpu = 1}, TransportChoice::Nccl), "");
  EXPECT_EQ(why_not_nccl(one, one, TransportChoice::Nccl), "");
}

TEST(TransportChoice, DoesNotUseNcclUnlessBothEndsHaveTheSameVersion)
{
  for (const auto choice : {TransportChoice::Nccl, TransportChoice::Auto}) {
    EXPECT_EQ(why_not_nccl(one, {}, choice), "a rank without a GPU or NCCL");
    EXPECT_EQ(why_not_nccl({}, one, choice), "a rank without a GPU or NCCL");
    EXPECT_EQ(why_not_nccl(one, {.nccl = 23003, .machine = 1, .gpu = 2}, choice), "NCCL 2.28.9 and 2.30.3");
  }
  EXPECT_EQ(why_not_nccl(one, one, TransportChoice::Tcp), "--transport tcp");
}

}  // namespace
}  // namespace isobar::exec::transport_choice_test
