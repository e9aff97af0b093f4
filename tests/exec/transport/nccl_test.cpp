#include "exec/transport/nccl.hpp"

#include "core/errors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <dlfcn.h>
#include <string_view>

namespace isobar::exec::nccl::nccl_test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing::ThrowsMessage;

constexpr const char* built_without = "NCCL: built without it; build with CUDA's toolkit and nccl.h";

TEST(Nccl, ReportsAMissingLibraryInOneLine)
{
  EXPECT_THAT([] { version("libnccl-none.so.2"); },
              ThrowsMessage<EnvironmentError>(AnyOf(
                  built_without, AllOf(StartsWith("NCCL: "), HasSubstr("libnccl-none.so.2"), Not(HasSubstr("\n"))))));
}

TEST(Nccl, RefusesAnotherLibrary)
{
  EXPECT_THAT([] { version("libc.so.6"); },
              ThrowsMessage<EnvironmentError>(AnyOf(built_without, HasSubstr("ncclGetVersion"))));
}

TEST(Nccl, HasAVersionAndMakesDistinctIds)
{
  const bool is_installed = dlopen(usual_library, RTLD_LAZY) != nullptr;
  try {
    EXPECT_GE(version(), 21400);
    EXPECT_NE(new_id(), new_id());
  } catch (const EnvironmentError& error) {
    if (is_installed && std::string_view(error.what()) != built_without) throw;
    GTEST_SKIP() << error.what();
  }
}

TEST(Nccl, FormatsVersionsAsNvidiaDoes)
{
  EXPECT_EQ(text_of_version(22809), "2.28.9");
  EXPECT_EQ(text_of_version(21400), "2.14.0");
  EXPECT_EQ(text_of_version(23003), "2.30.3");
}

}  // namespace
}  // namespace isobar::exec::nccl::nccl_test
