#include "core/text/json_text.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace isobar::json_text_test {
namespace {

using Json = nlohmann::ordered_json;

TEST(JsonText, HasOneLineOrAMemberALine)
{
  const Json json = {{"b", 1}, {"a", {1.5}}};
  EXPECT_EQ(json_line(json), R"({"b":1,"a":[1.5]})");
  EXPECT_EQ(json_lines(json), "{\n  \"b\": 1,\n  \"a\": [\n    1.5\n  ]\n}\n");
  EXPECT_EQ(json_line(nlohmann::json{{"b", 1}, {"a", 2}}), R"({"a":2,"b":1})");
}

TEST(JsonText, ReplacesBytesThatAreNotUtf8)
{
  EXPECT_EQ(json_line(Json("a\xff")), "\"a\xef\xbf\xbd\"");
}

TEST(JsonText, HasNullForWhatThereIsNot)
{
  EXPECT_EQ(json_line(Json{{"number", or_null(std::optional<double>())}, {"time", or_null(std::optional<Seconds>())}}),
            R"({"number":null,"time":null})");
  EXPECT_EQ(json_line(Json{{"number", or_null(0.5)}, {"time", or_null(std::optional(Seconds(2)))}}),
            R"({"number":0.5,"time":2.0})");
}

}  // namespace
}  // namespace isobar::json_text_test
