#include "core/base/file_kind.hpp"

#include "core/errors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isobar::file_kind_test {
namespace {

TEST(FileKind, IsRecognisedByTheFirstElementOrKeys)
{
  EXPECT_EQ(file_kind_of("<?xml version='1.0'?>\n<platform version=\"4.1\"/>"), FileKind::Platform);
  EXPECT_EQ(file_kind_of("# a comment\nname: x\nmodel: gpt\n"), FileKind::Workload);
  EXPECT_EQ(file_kind_of("model: gpt"), FileKind::Workload);
  EXPECT_EQ(file_kind_of(R"({"model": "gpt"})"), FileKind::Workload);
  EXPECT_EQ(file_kind_of(R"({ "schema":"isobar-plan/1"})"), FileKind::Plan);
  EXPECT_EQ(file_kind_of(R"({"schema": "isobar-result/1", "plan": {"schema": "isobar-plan/1"}})"), FileKind::Result);
}

TEST(FileKind, IsUnknownForOtherTexts)
{
  for (const auto* text : {"", " \n", "<html/>", "{}", R"({"model_type": "gpt2"})", "platform: a.xml\nallocator: even",
                           "layers: [{model: 1}]"}) {
    EXPECT_EQ(file_kind_of(text), std::nullopt) << text;
  }
}

TEST(FileKind, IsRefusedWithAHintIfItIsAnotherOne)
{
  EXPECT_THAT([] { require_file_kind(FileKind::Workload, "<platform/>", "a\n.xml"); },
              testing::ThrowsMessage<InputError>(
                  "a\\x0a.xml: is a platform; name a workload (YAML, such as workloads/bert160.yaml)"));
  EXPECT_NO_THROW(require_file_kind(FileKind::Platform, "<platform/>", "a.xml"));
  EXPECT_NO_THROW(require_file_kind(FileKind::Workload, "no: kind", "a.xml"));
}

}  // namespace
}  // namespace isobar::file_kind_test
