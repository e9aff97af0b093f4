// RapidCheck's header takes long to compile, so all of core's properties over random inputs are in this file.

#include "core/model/layer_graph.hpp"
#include "core/text/document.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cmath>

namespace isobar::properties_test {
namespace {

using Json = nlohmann::ordered_json;

Json random_json(int depth)
{
  const auto kind = *rc::gen::inRange(0, depth > 0 ? 8 : 6);
  if (kind == 0) return nullptr;
  if (kind == 1) return *rc::gen::arbitrary<bool>();
  if (kind == 2) return *rc::gen::arbitrary<std::int64_t>();
  if (kind == 3) return std::ldexp(*rc::gen::inRange(-1'000'000, 1'000'000), *rc::gen::inRange(-60, 30));
  if (kind < 6) {
    // Every character of the Basic Latin block, and some of two, three and four bytes.
    std::string text;
    for (const int character : *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 132))) {
      static const std::array<const char*, 4> wide = {"ä", "€", "😀", "\xEF\xBF\xBD"};
      text += character < 128 ? std::string(1, static_cast<char>(character))
                              : wide[static_cast<std::size_t>(character - 128)];
    }
    return text;
  }
  Json json = kind == 6 ? Json::array() : Json::object();
  const int members = *rc::gen::inRange(0, 5);
  for (int i = 0; i < members; ++i) {
    if (kind == 6) {
      json.push_back(random_json(depth - 1));
    } else {
      json[fmt::format("key {}", i)] = random_json(depth - 1);
    }
  }
  return json;
}

/// Expects the tree to equal the JSON.
void expect_same(const DocumentNode& node, const Json& json)
{
  switch (json.type()) {
    case Json::value_t::null:
      RC_ASSERT(node.kind == DocumentNode::Kind::Null);
      break;
    case Json::value_t::array:
      RC_ASSERT(node.kind == DocumentNode::Kind::Sequence);
      RC_ASSERT(node.items.size() == json.size());
      for (std::size_t i = 0; i < json.size(); ++i) expect_same(node.items[i], json[i]);
      break;
    case Json::value_t::object: {
      RC_ASSERT(node.kind == DocumentNode::Kind::Mapping);
      RC_ASSERT(node.members.size() == json.size());
      auto member = node.members.begin();
      for (const auto& [key, value] : json.items()) {
        RC_ASSERT(member->key == key);
        expect_same((member++)->value, value);
      }
      break;
    }
    default:
      RC_ASSERT(node.kind == DocumentNode::Kind::Scalar);
      RC_ASSERT(node.quoted == json.is_string());
      RC_ASSERT(node.scalar == (json.is_string() ? json.get<std::string>() : json.dump()));
  }
}

TEST(ParseJson, ReadsWhatWasWritten)
{
  EXPECT_TRUE(rc::check([] {
    const auto json = random_json(4);
    expect_same(parse_json(json.dump(*rc::gen::inRange(-1, 3), ' ', *rc::gen::arbitrary<bool>()), "x"), json);
  }));
}

TEST(ParseYaml, ReadsJsonAsJsonIsRead)
{
  EXPECT_TRUE(rc::check([] {
    // YAML has no surrogate pairs and refuses DEL: write characters unescaped, and leave DEL out.
    const auto json = random_json(4);
    const auto text = json.dump(*rc::gen::inRange(-1, 3));
    RC_PRE(text.find('\x7F') == std::string::npos);
    expect_same(parse_yaml(text, "x"), json);
  }));
}

TEST(QuantityText, ReadsBackWhatIsWrittenWithEveryDigit)
{
  EXPECT_TRUE(rc::check([] {
    const double value = std::ldexp(*rc::gen::inRange(0, 1 << 30), *rc::gen::inRange(-60, 30));
    RC_ASSERT(bytes_from_text(fmt::format("{} B", value)).value == value);
    RC_ASSERT(seconds_from_text(fmt::format("{}s", value)).value == value);
    RC_ASSERT(speed_from_text(fmt::format("{:.17g} FLOP/s", value)).value == value);
  }));
}

TEST(ChainView, KeepsAllWorkAndMemoryAndWhatCrossesItsCuts)
{
  EXPECT_TRUE(rc::check([] {
    Workload workload;
    workload.input = Bytes(*rc::gen::inRange(0, 1000));
    const int layers = *rc::gen::inRange(1, 30);
    for (int i = 0; i < layers; ++i) {
      Layer layer;
      layer.name = fmt::format("layer{}", i);
      layer.forward = Flops(*rc::gen::inRange(0, 1000));
      layer.parameters = *rc::gen::inRange(0U, 1000U);
      layer.activations = Bytes(*rc::gen::inRange(0, 1000));
      layer.output = Bytes(*rc::gen::inRange(1, 1000));
      layer.gradient = Bytes(*rc::gen::inRange(1, 1000));
      if (i > 0) layer.inputs.push_back(static_cast<std::size_t>(i - 1));
      if (i > 1 && *rc::gen::inRange(0, 4) == 0) {
        layer.inputs.push_back(*rc::gen::inRange<std::size_t>(0, static_cast<std::size_t>(i - 1)));
      }
      workload.layers.push_back(layer);
    }
    const auto view = chain_view(workload);
    RC_ASSERT(is_chain(view.workload));

    auto total = [](const Workload& of, auto read) {
      double sum = 0;
      for (const auto& layer : of.layers) sum += read(layer);
      return sum;
    };
    for (const auto read : {+[](const Layer& layer) { return layer.forward.value; },
                            +[](const Layer& layer) { return static_cast<double>(layer.parameters); },
                            +[](const Layer& layer) { return layer.activations.value; }}) {
      RC_ASSERT(total(view.workload, read) == total(workload, read));
    }
    const auto before = boundaries_of(workload);
    const auto after = boundaries_of(view.workload);
    for (std::size_t block = 0; block < view.first_layer.size(); ++block) {
      RC_ASSERT(after.output[block] == before.output[view.first_layer[block]]);
      RC_ASSERT(after.gradient[block] == before.gradient[view.first_layer[block]]);
    }
  }));
}

}  // namespace
}  // namespace isobar::properties_test
