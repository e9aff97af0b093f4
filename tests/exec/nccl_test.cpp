#include "exec/nccl.hpp"

#include "core/errors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isobar::exec::nccl {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing::ThrowsMessage;

constexpr const char* built_without = "NCCL: built without it; build with CUDA's toolkit and nccl.h";

TEST(Nccl, ThatIsNotThereIsSaidInOneLine)
{
  EXPECT_THAT([] { version("libnccl-none.so.2"); },
              ThrowsMessage<EnvironmentError>(AnyOf(
                  built_without, AllOf(StartsWith("NCCL: "), HasSubstr("libnccl-none.so.2"), Not(HasSubstr("\n"))))));
}

TEST(Nccl, IsNotTakenForAnotherLibrary)
{
  EXPECT_THAT([] { version("libc.so.6"); },
              ThrowsMessage<EnvironmentError>(AnyOf(built_without, HasSubstr("ncclGetVersion"))));
}

TEST(Nccl, SaysItsVersionAndNamesCommunicators)
{
  try {
    EXPECT_GE(version(), 21400);
  } catch (const EnvironmentError& error) {
    GTEST_SKIP() << error.what();
  }
  EXPECT_NE(new_id(), new_id());
}

TEST(Nccl, WritesVersionsAsItsMakersDo)
{
  EXPECT_EQ(text_of_version(22809), "2.28.9");
  EXPECT_EQ(text_of_version(21400), "2.14.0");
  EXPECT_EQ(text_of_version(23003), "2.30.3");
}

}  // namespace
}  // namespace isobar::exec::nccl
