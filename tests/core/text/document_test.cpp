#include "core/text/document.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isobar::document_test {
namespace {

using Kind = DocumentNode::Kind;

std::string fault_of(const auto& work)
{
  try {
    work();
  } catch (const InputError& fault) {
    return fault.what();
  }
  return "accepted";
}

std::string yaml_fault(const std::string& text)
{
  return fault_of([&] { parse_yaml(text, "x.yaml"); });
}

std::string json_fault(const std::string& text)
{
  return fault_of([&] { parse_json(text, "x.json"); });
}

/// A tree on one line, with each node's line as "@2".
std::string shown(const DocumentNode& node)
{
  switch (node.kind) {
    case Kind::Null:
      return fmt::format("null@{}", node.line);
    case Kind::Scalar:
      return fmt::format("{}{}{}@{}", node.quoted ? "'" : "", node.scalar, node.quoted ? "'" : "", node.line);
    case Kind::Sequence: {
      std::string text;
      for (const auto& item : node.items) text += (text.empty() ? "" : " ") + shown(item);
      return fmt::format("[{}]@{}", text, node.line);
    }
    case Kind::Mapping: {
      std::string text;
      for (const auto& [key, value] : node.members) text += (text.empty() ? "" : " ") + key + "=" + shown(value);
      return fmt::format("{{{}}}@{}", text, node.line);
    }
  }
  return "";
}

TEST(ParseYaml, KnowsTheLineOfEveryValue)
{
  EXPECT_EQ(
      shown(parse_yaml("# sizes\nmodel: bert\nlayers:\n  - name: a\n    forward: \"2 GFLOP\"\n  - {name: b}\n", "x")),
      "{model=bert@2 layers=[{name=a@4 forward='2 GFLOP'@5}@4 {name=b@6}@6]@3}@2");
}

TEST(ParseYaml, GivesAMemberTheLineOfItsKey)
{
  EXPECT_EQ(shown(parse_yaml("a:\nb:\n\n  c: 1\nd:\n  text\n", "x")), "{a=null@1 b={c=1@4}@2 d=text@5}@1");
}

TEST(ParseYaml, DistinguishesQuotedFromPlainText)
{
  EXPECT_EQ(shown(parse_yaml("[1, '1', \"1\", null, ~, 'null', ]", "x")), "[1@1 '1'@1 '1'@1 null@1 null@1 'null'@1]@1");
}

TEST(ParseYaml, ReadsAnEmptyFileAsNull)
{
  EXPECT_EQ(shown(parse_yaml("", "x")), "null@1");
  EXPECT_EQ(shown(parse_yaml("# nothing\n", "x")), "null@1");
}

TEST(ParseYaml, RefusesInvalidYaml)
{
  EXPECT_EQ(yaml_fault("a: 1\nb: [1, 2\n"), "x.yaml:2: not YAML: end of sequence flow not found");
  EXPECT_EQ(yaml_fault("a: 1\nb: c: d\n"), "x.yaml:2: not YAML: illegal map value");
  EXPECT_EQ(yaml_fault("a: 1\n\tb: 2\n"), "x.yaml:2: not YAML: illegal tab when looking for indentation");
  EXPECT_EQ(yaml_fault("a: {b: 1\n"), "x.yaml:1: not YAML: end of map flow not found");
}

TEST(ParseYaml, RefusesUnterminatedQuotes)
{
  EXPECT_EQ(yaml_fault("a: \"1"), "x.yaml:1: not YAML: illegal EOF in scalar");
  EXPECT_EQ(yaml_fault("a: \"1\n"), "x.yaml:1: not YAML: end of quoted text not found");
  EXPECT_EQ(yaml_fault("b: '2'\na: '1\n\n"), "x.yaml:2: not YAML: end of quoted text not found");
  EXPECT_EQ(yaml_fault("'it''s\n"), "x.yaml:1: not YAML: end of quoted text not found");
  EXPECT_EQ(yaml_fault("'a\n"), "x.yaml:1: not YAML: end of quoted text not found");
  EXPECT_EQ(yaml_fault("a: \"1\\\"\n"), "x.yaml:1: not YAML: end of quoted text not found");
  EXPECT_EQ(shown(parse_yaml("a: \"1\\\"\"\nb: 'it''s'\n", "x")), "{a='1\"'@1 b='it's'@2}@1");
  EXPECT_EQ(shown(parse_yaml("\xEF\xBB\xBF"
                             "a: 'b'\n",
                             "x")),
            "{a='b'@1}@1");
}

TEST(ParseYaml, ReadsBlocksOfText)
{
  EXPECT_EQ(parse_yaml("a: >-\n  b 'c\n  d\n", "x.yaml").members.front().value.scalar, "b 'c d");
  EXPECT_EQ(parse_yaml("a: |\n  b \"c\n", "x.yaml").members.front().value.scalar, "b \"c\n");
}

TEST(ParseYaml, RefusesDuplicateKeys)
{
  EXPECT_EQ(yaml_fault("a: 1\nb: 2\nb: 3\na: 4\n"), "x.yaml:4: a: given twice, first in line 1; remove one");
  EXPECT_EQ(yaml_fault("a: {c: 1, c: 2}\n"), "x.yaml:1: c: given twice, first in line 1; remove one");
}

TEST(ParseYaml, RefusesAnchorsAliasesAndTags)
{
  EXPECT_EQ(yaml_fault("a: &here 1\n"), "x.yaml:1: an anchor (&); write the value where it is needed");
  EXPECT_EQ(yaml_fault("a:\n - &here [1]\n"), "x.yaml:2: an anchor (&); write the value where it is needed");
  EXPECT_EQ(yaml_fault("a: &here {b: 1}\nc: *here\n"), "x.yaml:1: an anchor (&); write the value where it is needed");
  EXPECT_EQ(yaml_fault("b: 1\na: *here\n"), "x.yaml:2: not YAML: the referenced anchor is not defined");
  EXPECT_EQ(yaml_fault("a: !!str 1\n"), "x.yaml:1: a tag (tag:yaml.org,2002:str); write the value without it");
  EXPECT_EQ(yaml_fault("a: ! 1\n"), "x.yaml:1: a tag (!); write the value without it");
  EXPECT_EQ(yaml_fault("a: ! '1'\n"), "x.yaml:1: a tag (!); write the value without it");
  EXPECT_EQ(yaml_fault("a: ! [1]\n"), "x.yaml:1: a tag (!); write the value without it");
  EXPECT_EQ(yaml_fault("a: !mine {b: 1}\n"), "x.yaml:1: a tag (!mine); write the value without it");
}

TEST(ParseYaml, RefusesASecondDocument)
{
  EXPECT_EQ(yaml_fault("a: 1\n---\nb: 2\n"), "x.yaml:2: a second document; a file holds one");
}

TEST(ParseYaml, RefusesKeysThatAreNotStrings)
{
  EXPECT_EQ(yaml_fault("? [a]\n: 1\n"), "x.yaml:1: a list or mapping as a key; a key is a string");
  EXPECT_EQ(yaml_fault("{: 1}\n"), "x.yaml:1: a key is missing; write \"key: value\"");
}

TEST(ParseYaml, RefusesDeepNesting)
{
  const auto nested = [](int depth) {
    return "a: " + std::string(static_cast<std::size_t>(depth), '[') +
           std::string(static_cast<std::size_t>(depth), ']');
  };
  EXPECT_EQ(yaml_fault(nested(63)), "accepted");
  EXPECT_EQ(yaml_fault(nested(64)), "x.yaml:1: nested deeper than 64 levels; flatten it");
  EXPECT_EQ(yaml_fault(nested(100'000)), "x.yaml:1: nested deeper than 64 levels; flatten it");
}

TEST(ParseYaml, RefusesWhatIsNotText)
{
  EXPECT_EQ(yaml_fault(std::string("a: 1\nb: \x04\nc: 2\n")),
            "x.yaml:2: not YAML: the control character \\x04; write text in UTF-8");
  EXPECT_EQ(yaml_fault(std::string("\xFF\xFE"
                                   "a\0",
                                   4)),
            "x.yaml:1: not YAML: the byte \\xff; write text in UTF-8");
  for (const auto* bad : {"\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\x80", "\xC3", "\xE2\x82"}) {
    EXPECT_THAT(yaml_fault(std::string("a: ") + bad), testing::StartsWith("x.yaml:1: not YAML: the byte")) << bad;
  }
  EXPECT_EQ(shown(parse_yaml("ä: € 😀\n", "x")), "{ä=€ 😀@1}@1");
}

TEST(ParseJson, KnowsTheLineOfEveryValue)
{
  EXPECT_EQ(shown(parse_json("{\n  \"a\": 1,\n  \"b\": [true\n, null,\n -2.5e3\n],\n\"c\":\n{\"d\": \"x\"}}\n", "x")),
            "{a=1@2 b=[true@3 null@4 -2.5e3@5]@3 c={d='x'@8}@7}@1");
  EXPECT_EQ(shown(parse_json("12\n", "x")), "12@1");
}

TEST(ParseJson, ReadsEveryEscape)
{
  EXPECT_EQ(shown(parse_json(R"(["\ud83d\ude00\u00e4\n\t\"\\\/\u0000"])", "x")),
            fmt::format("['😀ä\n\t\"\\/{}'@1]@1", std::string(1, '\0')));
}

TEST(ParseJson, KeepsTheDigitsOfNumbers)
{
  EXPECT_EQ(shown(parse_json("[9007199254740993, -7, 123456789012345678901234567890, 0.1000]", "x")),
            "[9007199254740993@1 -7@1 123456789012345678901234567890@1 0.1000@1]@1");
}

/// The members that are passed on, and the fault that ends them.
std::string json_members(const std::string& text, std::size_t most_values = 3)
{
  std::string members;
  const auto take = [&](const DocumentNode::Member& member) {
    members += member.key + "=" + shown(member.value) + " ";
  };
  return members + fault_of([&] { read_json_members(text, "x.json", most_values, take); });
}

TEST(ReadJsonMembers, PassesThemOnInOrder)
{
  EXPECT_EQ(json_members("{\"b\": [1,\n{\"c\": null}], \"a\":\n2,\n\"b\": {}}"),
            "b=[1@1 {c=null@2}@2]@1 a=2@2 b={}@4 accepted");
  EXPECT_EQ(json_members("{}"), "accepted");
}

TEST(ReadJsonMembers, RefusesNonMappingsAndLargeValues)
{
  EXPECT_EQ(json_members("[1]"), "x.json:1: is not a mapping");
  EXPECT_EQ(json_members("\n1"), "x.json:2: is not a mapping");
  EXPECT_EQ(json_members("{\"a\": 1,\n\"b\""),
            "a=1@1 x.json:2: not JSON: syntax error while parsing object separator - "
            "unexpected end of input; expected ':'");
  EXPECT_EQ(json_members(R"({"a": [1, 2, 3], "b": 4, "c": [[1, 2], 3, {)"),
            "a=[1@1 2@1 3@1]@1 b=4@1 x.json:1: c: has more than 3 values");
}

TEST(ParseJson, RefusesInvalidJson)
{
  EXPECT_EQ(json_fault(""),
            "x.json:1: not JSON: syntax error while parsing value - unexpected end of input; expected '[', '{', or a "
            "literal");
  EXPECT_EQ(json_fault("{\n\"a\": nul\n}"), "x.json:2: not JSON: syntax error while parsing value - invalid literal");
  EXPECT_EQ(json_fault("{\n\"a\": 1,\n}"),
            "x.json:3: not JSON: syntax error while parsing object key - unexpected '}'; expected string literal");
  EXPECT_EQ(json_fault("[1]\n[2]"),
            "x.json:2: not JSON: syntax error while parsing value - unexpected '['; expected end of input");
  EXPECT_EQ(json_fault("[1, NaN]"), "x.json:1: NaN is not a number in JSON; write a finite one");
  EXPECT_EQ(json_fault("{\n\"a\": 1,\n\"b\" : Infinity}"),
            "x.json:3: b: Infinity is not a number in JSON; write a finite one");
  EXPECT_EQ(json_fault(R"({"a": {"b": [-Infinity]}})"),
            "x.json:1: -Infinity is not a number in JSON; write a finite one");
  EXPECT_EQ(json_fault(R"({"a": -Infinity})"), "x.json:1: a: -Infinity is not a number in JSON; write a finite one");
  EXPECT_EQ(json_fault("[Nan]"), "x.json:1: not JSON: syntax error while parsing value - invalid literal");
  EXPECT_EQ(json_fault("N"), "x.json:1: not JSON: syntax error while parsing value - invalid literal");
  EXPECT_EQ(json_fault("[01]"),
            "x.json:1: not JSON: syntax error while parsing array - unexpected number literal; expected ']'");
  EXPECT_EQ(json_fault("[1e999]"), "x.json:1: not JSON: number overflow parsing '1e999'");
  EXPECT_EQ(json_fault("{a: 1}"), "x.json:1: not JSON: syntax error while parsing object key - invalid literal");
  EXPECT_EQ(json_fault("// no\n1"), "x.json:1: not JSON: syntax error while parsing value - invalid literal");
  EXPECT_EQ(json_fault(R"(["\ud83d"])"),
            "x.json:1: not JSON: syntax error while parsing value - invalid string: surrogate U+D800..U+DBFF must be "
            "followed by U+DC00..U+DFFF");
  EXPECT_EQ(json_fault("[\"a\nb\"]"),
            "x.json:1: not JSON: syntax error while parsing value - invalid string: control character U+000A (LF) must "
            "be escaped to \\u000A or \\n");
  EXPECT_EQ(json_fault("[\"\xFF\"]"),
            "x.json:1: not JSON: syntax error while parsing value - invalid string: ill-formed UTF-8 byte");
  EXPECT_EQ(json_fault(std::string("[1,\n2]\0 more", 13)),
            "x.json:2: not JSON: the control character \\x00; write text in UTF-8");
}

TEST(ParseJson, RefusesDuplicateKeysAndDeepNesting)
{
  EXPECT_EQ(json_fault("{\"a\": 1,\n\"a\": 2}"), "x.json:2: a: given twice, first in line 1; remove one");
  EXPECT_EQ(json_fault(std::string(64, '[') + std::string(64, ']')), "accepted");
  EXPECT_EQ(json_fault(std::string(1'000'000, '[')), "x.json:1: nested deeper than 64 levels; flatten it");
}

/// Reads `text` with `read` and returns every fault.
std::string reader_fault(const std::string& text, const auto& read)
{
  return fault_of([&] {
    const auto node = parse_yaml(text, "x.yaml");
    FaultList faults("x.yaml");
    MappingReader reader(node, "", faults);
    read(reader);
    faults.throw_if_any();
  });
}

TEST(MappingReader, ReadsEveryKindOfValue)
{
  const auto node = parse_yaml(
      "text: a b\ncount: 12\nnumber: -1.5e3\nnone: null\nyes: true\nsize: 80 GB\nwork: \"2 GFLOP\"\nchoice: b\n"
      "list: [1, 2]\n",
      "x.yaml");
  FaultList faults("x.yaml");
  MappingReader reader(node, "", faults);
  EXPECT_EQ(reader.required_text("text"), "a b");
  EXPECT_EQ(reader.optional_text("text"), "a b");
  EXPECT_EQ(reader.required_count("count"), 12u);
  EXPECT_EQ(reader.optional_count("count", 12, 12), 12u);
  EXPECT_EQ(reader.required_number("number", -2000), -1500);
  EXPECT_EQ(reader.optional_number("none"), std::nullopt);
  EXPECT_EQ(reader.optional_number("count"), 12);
  EXPECT_EQ(reader.optional_boolean("yes"), true);
  EXPECT_EQ(reader.required_bytes("size"), Bytes(80e9));
  EXPECT_EQ(reader.optional_bytes("size"), Bytes(80e9));
  EXPECT_EQ(reader.required_flops("work"), Flops(2e9));
  EXPECT_EQ(reader.optional_flops("work"), Flops(2e9));
  EXPECT_EQ(reader.required_choice("choice", {"a", "b"}), "b");
  EXPECT_EQ(reader.optional_choice("choice", {"a", "b"}), "b");
  EXPECT_EQ(reader.required_sequence("list").size(), 2u);
  EXPECT_EQ(reader.optional("absent"), nullptr);
  EXPECT_EQ(reader.optional_count("absent"), std::nullopt);
  EXPECT_EQ(reader.optional_text("absent"), std::nullopt);
  EXPECT_EQ(reader.optional_boolean("absent"), std::nullopt);
  EXPECT_TRUE(reader.has("yes"));
  EXPECT_FALSE(reader.has("absent"));
  reader.refuse_unknown();
  EXPECT_TRUE(faults.empty());
}

TEST(MappingReader, TellsWhatAMissingKeyShouldHold)
{
  EXPECT_EQ(reader_fault("b: 1\n",
                         [](MappingReader& reader) {
                           reader.optional("b");
                           reader.required("any");
                           reader.required_text("text");
                           reader.required_count("count", 1, 9);
                           reader.required_count("open", 1);
                           reader.required_number("number");
                           reader.required_bytes("size");
                           reader.required_flops("work");
                           reader.required_choice("choice", {"left", "right"});
                           reader.required_sequence("list");
                         }),
            "x.yaml:1: any: missing; write a value\n"
            "x.yaml:1: text: missing; write a string\n"
            "x.yaml:1: count: missing; write a whole number from 1 to 9\n"
            "x.yaml:1: open: missing; write a whole number, 1 or more\n"
            "x.yaml:1: number: missing; write a number, 0 or more\n"
            "x.yaml:1: size: missing; write a number and a unit, such as \"80 GB\"\n"
            "x.yaml:1: work: missing; write a number and a unit, such as \"2 GFLOP\"\n"
            "x.yaml:1: choice: missing; write one of left, right\n"
            "x.yaml:1: list: missing; write a list");
}

TEST(MappingReader, RefusesInvalidCounts)
{
  for (const std::string text : {"twelve", "-1", "1.0", "1e3", "0x10", "010", "+1", "1 000", "NaN"}) {
    EXPECT_EQ(reader_fault("a: " + text, [](auto& reader) { reader.required_count("a", 1); }),
              "x.yaml:1: a: \"" + text + "\" is not a whole number; write a whole number, 1 or more");
  }
  EXPECT_EQ(reader_fault("a: '12'", [](auto& reader) { reader.required_count("a", 1, 20); }),
            "x.yaml:1: a: \"12\" is not a whole number; write a whole number from 1 to 20 without quotes");
  for (const std::string text : {"0", "21", "99999999999999999999999"}) {
    EXPECT_EQ(reader_fault("a: " + text, [](auto& reader) { reader.optional_count("a", 1, 20); }),
              "x.yaml:1: a: \"" + text + "\" is out of range; write a whole number from 1 to 20");
  }
}

TEST(MappingReader, RefusesInvalidNumbers)
{
  for (const std::string text : {"NaN", "nan", ".inf", "inf", "-inf", "1,5", "1.5 s", "0x10", ".5", "1e", "--1"}) {
    EXPECT_EQ(reader_fault("a: " + text, [](auto& reader) { reader.required_number("a"); }),
              "x.yaml:1: a: \"" + text + "\" is not a number; write a number, 0 or more");
  }
  EXPECT_EQ(reader_fault("a: '1.5'", [](auto& reader) { reader.optional_number("a"); }),
            "x.yaml:1: a: \"1.5\" is not a number; write a number, 0 or more, without quotes");
  for (const std::string text : {"-0.1", "1e999"}) {
    EXPECT_EQ(reader_fault("a: " + text, [](auto& reader) { reader.required_number("a"); }),
              "x.yaml:1: a: \"" + text + "\" is out of range; write a number, 0 or more");
  }
  const auto fault_from_1_to_9 = [](const std::string& text) {
    return reader_fault("a: " + text, [](auto& reader) { reader.required_number("a", 1, 9); });
  };
  EXPECT_EQ(fault_from_1_to_9("9.1"), "x.yaml:1: a: \"9.1\" is out of range; write a number from 1 to 9");
  EXPECT_EQ(fault_from_1_to_9("x"), "x.yaml:1: a: \"x\" is not a number; write a number from 1 to 9");
}

TEST(MappingReader, RefusesQuantitiesWithoutAUnit)
{
  EXPECT_EQ(reader_fault("b: 1\na: 80\n", [](auto& reader) { reader.required_bytes("a"); }),
            "x.yaml:2: a: \"80\" is not a size; write a number and a unit, such as \"80 GB\"");
  EXPECT_EQ(reader_fault("a: 0\n", [](auto& reader) { reader.optional_bytes("a"); }),
            "x.yaml:1: a: \"0\" is not a size; write a number and a unit, such as \"80 GB\"");
  EXPECT_EQ(reader_fault("a: 2 GFLOPS\n", [](auto& reader) { reader.required_flops("a"); }),
            "x.yaml:1: a: \"2 GFLOPS\" is not an amount of work; write \"2 GFLOP\"");
}

TEST(MappingReader, RefusesOtherKindsOfValue)
{
  EXPECT_EQ(reader_fault("a: [1]\nb: {c: 1}\nd:\ne: 1\n",
                         [](auto& reader) {
                           reader.required_bytes("a");
                           reader.optional_count("b", 0, 1);
                           reader.optional_text("d");
                           reader.required_sequence("e");
                         }),
            "x.yaml:1: a: is a list; write a number and a unit, such as \"80 GB\"\n"
            "x.yaml:2: b: is a mapping; write a whole number from 0 to 1\n"
            "x.yaml:3: d: has no value; write a string\n"
            "x.yaml:4: e: is a single value; write a list");
}

TEST(MappingReader, AcceptsOnlyJsonStringsAsTexts)
{
  const auto node = parse_json("{\"a\": true,\n\"b\": 1.50,\n\"c\": \"1\"}", "x.json");
  FaultList faults("x.json");
  MappingReader reader(node, "", faults);
  reader.required_text("a");
  reader.optional_text("b");
  EXPECT_EQ(reader.required_text("c"), "1");
  EXPECT_EQ(fault_of([&] { faults.throw_if_any(); }),
            "x.json:1: a: true is not a string; write \"true\"\nx.json:2: b: 1.50 is not a string; write \"1.50\"");
  EXPECT_EQ(reader_fault("a: true\n", [](auto& yaml) { yaml.required_text("a"); }), "accepted");
}

TEST(MappingReader, NamesTheNearestChoice)
{
  EXPECT_EQ(reader_fault("a: fp32\n",
                         [](auto& reader) {
                           reader.required_choice("a", {"float32", "bf16"});
                         }),
            "x.yaml:1: a: \"fp32\" is not one of float32, bf16");
  EXPECT_EQ(reader_fault("a: float23\n",
                         [](auto& reader) {
                           reader.optional_choice("a", {"float32", "bf16"});
                         }),
            "x.yaml:1: a: \"float23\" is not one of float32, bf16; did you mean float32?");
  EXPECT_EQ(reader_fault("a: isobar-orders/2\n",
                         [](auto& reader) {
                           reader.required_choice("a", {"isobar-orders/1"});
                           reader.required_choice("b", {"one"});
                         }),
            "x.yaml:1: a: \"isobar-orders/2\" is not isobar-orders/1\nx.yaml:1: b: missing; write one");
  EXPECT_EQ(reader_fault("a: 'true'\nb: yes\n",
                         [](auto& reader) {
                           reader.optional_boolean("a");
                           reader.optional_boolean("b");
                         }),
            "x.yaml:1: a: \"true\" is not a boolean; write true or false without quotes\n"
            "x.yaml:2: b: \"yes\" is not a boolean; write true or false");
}

TEST(MappingReader, RefusesUnknownKeysAndSuggestsTheMissingOne)
{
  EXPECT_EQ(reader_fault("hidden: 1\nhiden: 2\nparmas: 3\nwhatever: 4\n",
                         [](auto& reader) {
                           reader.required_count("hidden");
                           reader.optional_count("params");
                           reader.refuse_unknown();
                         }),
            "x.yaml:2: hiden: unknown key; the keys here are hidden, params\n"
            "x.yaml:3: parmas: unknown key; did you mean params?\n"
            "x.yaml:4: whatever: unknown key; the keys here are hidden, params");
}

TEST(MappingReader, PutsItsPathBeforeKeys)
{
  const auto node = parse_yaml("stages: [{first: x}, 5]\n", "x.yaml");
  EXPECT_EQ(fault_of([&] {
              FaultList faults("x.yaml");
              const auto& stages = MappingReader(node, "", faults).required_sequence("stages");
              MappingReader(stages[0], "stages[0].", faults).required_count("first", 0, 9);
              MappingReader second(stages[1], "stages[1].", faults);
              second.required_count("first");
              second.refuse_unknown();
              faults.throw_if_any();
            }),
            "x.yaml:1: stages[0].first: \"x\" is not a whole number; write a whole number from 0 to 9\n"
            "x.yaml:1: stages[1]: is a single value; write \"key: value\" pairs");
}

TEST(MappingReader, RefusesAFileThatIsNotAMapping)
{
  EXPECT_EQ(reader_fault("", [](auto& reader) { reader.required_count("a"); }),
            "x.yaml:1: the file is empty; write \"key: value\" pairs");
  EXPECT_EQ(reader_fault("- 1\n", [](auto& reader) { reader.required_count("a"); }),
            "x.yaml:1: the file is a list; write \"key: value\" pairs");
}

TEST(FaultList, KeepsEachFaultOnOneShortLine)
{
  EXPECT_EQ(reader_fault("? \"a\\nb\"\n: 1\n", [](auto& reader) { reader.refuse_unknown(); }),
            "x.yaml:1: a\\x0ab: unknown key; the keys here are ");
  EXPECT_EQ(reader_fault("? " + std::string(300, 'k') + "\n: 1\n", [](auto& reader) { reader.refuse_unknown(); }),
            "x.yaml:1: " + std::string(200, 'k') + "…: unknown key; the keys here are ");
}

TEST(FaultList, ListsAllFaultsByLine)
{
  FaultList faults("x.yaml");
  EXPECT_TRUE(faults.empty());
  EXPECT_NO_THROW(faults.throw_if_any());
  faults.add(7, "b", "wrong");
  faults.add(3, "", "also wrong");
  faults.add(7, "a", "wrong as well");
  EXPECT_EQ(fault_of([&] { faults.throw_if_any(); }),
            "x.yaml:3: also wrong\nx.yaml:7: b: wrong\nx.yaml:7: a: wrong as well");
}

TEST(FaultList, ShowsTheFirstTwentyFaultsByLineAndCountsTheOthers)
{
  const auto lines = [](int first, int last) {
    std::string text;
    for (int line = first; line <= last; ++line)
      text += fmt::format("{}x.yaml:{}: wrong", text.empty() ? "" : "\n", line);
    return text;
  };
  FaultList faults("x.yaml");
  for (int line = 20; line >= 1; --line) faults.add(line, "", "wrong");
  EXPECT_EQ(fault_of([&] { faults.throw_if_any(); }), lines(1, 20));
  faults.add(21, "", "wrong");
  faults.add(0, "", "wrong");
  EXPECT_EQ(fault_of([&] { faults.throw_if_any(); }), "x.yaml: wrong\n" + lines(1, 19) + "\nx.yaml: and 2 more")
      << "line 0 is that of an option, which has none";
}

}  // namespace
}  // namespace isobar::document_test
