#include "core/compute/operator_table.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/names.hpp"
#include "core/text/document.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace isobar::compute {

namespace {

constexpr auto schema = "isobar-operators/1";

// Beyond anything that can be measured: larger values are mistakes in units. Products of these stay finite.
constexpr double longest_s = 1e6;
constexpr double shortest_s = 1e-9;
constexpr double fastest = 1e30;
constexpr double most_bytes = 1e18;
constexpr std::uint64_t largest_extent = std::uint64_t{1} << 31U;

constexpr NameTable<ProductLayout, 3> layouts = {
    {{ProductLayout::TN, "TN"}, {ProductLayout::NN, "NN"}, {ProductLayout::NT, "NT"}}};
constexpr NameTable<BoundOperator, 5> bound_operators = {{{BoundOperator::Norm, "norm"},
                                                          {BoundOperator::Activation, "activation"},
                                                          {BoundOperator::Residual, "residual"},
                                                          {BoundOperator::Softmax, "softmax"},
                                                          {BoundOperator::Copy, "copy"}}};

/// A required number in [least, most].
double number_between(double least, double most, MappingReader& reader, const std::string& key)
{
  const double number = reader.required_number(key);
  if (!(number >= least && number <= most)) {
    reader.add_fault(key, fmt::format("{:.6g} is out of range; write {:.0e} to {:.0e}", number, least, most));
    return least;
  }
  return number;
}

Seconds read_time(MappingReader& reader, const std::string& key)
{
  return Seconds(number_between(shortest_s, longest_s, reader, key));
}

MeasuredProduct read_product(MappingReader& entry)
{
  MeasuredProduct measured;
  measured.product.batch = entry.optional_count("batch", 1, largest_extent).value_or(1);
  measured.product.m = entry.required_count("m", 1, largest_extent);
  measured.product.n = entry.required_count("n", 1, largest_extent);
  measured.product.k = entry.required_count("k", 1, largest_extent);
  measured.product.layout =
      value_in(layouts, entry.required_choice("layout", names_in(layouts))).value_or(ProductLayout::TN);
  measured.time = read_time(entry, "time_s");
  entry.refuse_unknown();
  return measured;
}

MeasuredAttention read_attention(MappingReader& entry)
{
  MeasuredAttention measured;
  measured.batch = entry.required_count("batch", 1, largest_extent);
  measured.heads = entry.required_count("heads", 1, largest_extent);
  measured.sequence = entry.required_count("sequence", 1, largest_extent);
  measured.width = entry.required_count("width", 1, largest_extent);
  measured.forward = read_time(entry, "forward_s");
  measured.backward = read_time(entry, "backward_s");
  entry.refuse_unknown();
  return measured;
}

std::array<double, 4> logarithms(const Product& product)
{
  const auto log = [](std::uint64_t extent) { return std::log2(static_cast<double>(extent)); };
  return {log(product.batch), log(product.m), log(product.n), log(product.k)};
}

double squared_distance(const Product& one, const Product& other)
{
  const auto a = logarithms(one);
  const auto b = logarithms(other);
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

}  // namespace

std::string_view name_of(ProductLayout layout)
{
  return name_in(layouts, layout);
}

std::string_view name_of(BoundOperator which)
{
  return name_in(bound_operators, which);
}

Flops Product::work() const
{
  return Flops(2 * static_cast<double>(batch) * static_cast<double>(m) * static_cast<double>(n) *
               static_cast<double>(k));
}

Seconds OperatorTable::time_of(const Product& product) const
{
  const bool has_layout = std::any_of(products.begin(), products.end(),
                                      [&](const auto& measured) { return measured.product.layout == product.layout; });
  std::vector<std::pair<double, const MeasuredProduct*>> near;
  for (const auto& measured : products) {
    if (has_layout && measured.product.layout != product.layout) continue;
    near.emplace_back(squared_distance(product, measured.product), &measured);
  }
  ensure(!near.empty(), "an operator table has products");
  constexpr std::size_t most = 4;
  const std::size_t count = std::min(most, near.size());
  std::partial_sort(near.begin(), near.begin() + static_cast<std::ptrdiff_t>(count), near.end(),
                    [](const auto& one, const auto& other) { return one.first < other.first; });
  if (near.front().first == 0) return near.front().second->time;
  double weights = 0;
  double logarithm = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [distance, measured] = near[i];
    weights += 1 / distance;
    logarithm += std::log((measured->product.work() / measured->time).value) / distance;
  }
  return product.work() / FlopsPerSecond(std::exp(logarithm / weights));
}

std::string operator_table_to_json(const OperatorTable& table)
{
  using Json = nlohmann::ordered_json;
  Json json = {{"schema", schema},
               {"device", table.device},
               {"dtype", name_of(table.dtype)},
               {"tf32", table.tf32},
               {"memory_bytes", table.memory.value}};
  if (table.launch) json["launch_s"] = table.launch->value;
  for (const auto& [product, time] : table.products) {
    json["products"].push_back({{"batch", product.batch},
                                {"m", product.m},
                                {"n", product.n},
                                {"k", product.k},
                                {"layout", name_of(product.layout)},
                                {"time_s", time.value}});
  }
  for (const auto& [which, bandwidth] : table.memory_bound) {
    json["memory_bound"][std::string(name_of(which))] = {{"forward_bytes_per_s", bandwidth.forward.value},
                                                         {"backward_bytes_per_s", bandwidth.backward.value}};
  }
  for (const auto& measured : table.attention) {
    json["attention"].push_back({{"batch", measured.batch},
                                 {"heads", measured.heads},
                                 {"sequence", measured.sequence},
                                 {"width", measured.width},
                                 {"forward_s", measured.forward.value},
                                 {"backward_s", measured.backward.value}});
  }
  return json.dump(1) + "\n";
}

OperatorTable operator_table_from_json(const std::string& text, const std::string& name)
{
  const DocumentNode root = parse_json(text, name);
  FaultList faults(name);
  MappingReader reader(root, "", faults);
  OperatorTable table;
  reader.required_choice("schema", {schema});
  table.device = reader.required_text("device");
  table.dtype = dtype_from_name(reader.required_choice("dtype", dtype_names())).value_or(DType::Float32);
  table.tf32 = reader.optional_boolean("tf32").value_or(false);
  if (table.tf32 && table.dtype != DType::Float32) {
    reader.add_fault("tf32",
                     fmt::format("true for dtype {}; only float32 products round to TF32", name_of(table.dtype)));
  }
  table.memory = Bytes(number_between(1, most_bytes, reader, "memory_bytes"));
  if (reader.optional("launch_s") != nullptr) table.launch = read_time(reader, "launch_s");
  const auto& products = reader.required_sequence("products");
  if (reader.has("products") && products.empty()) reader.add_fault("products", "is empty; list at least one product");
  for (const auto& node : products) {
    MappingReader entry(node, fmt::format("products[{}].", table.products.size()), faults);
    table.products.push_back(read_product(entry));
  }
  if (const auto* node = reader.optional("memory_bound")) {
    MappingReader by_operator(*node, "memory_bound.", faults);
    for (const auto& [which, word] : bound_operators) {
      const std::string key(word);
      const auto* member = by_operator.optional(key);
      if (member == nullptr) continue;
      MappingReader entry(*member, by_operator.path_of(key) + ".", faults);
      const double forward = number_between(1, fastest, entry, "forward_bytes_per_s");
      const double backward = number_between(1, fastest, entry, "backward_bytes_per_s");
      table.memory_bound[which] = {BytesPerSecond(forward), BytesPerSecond(backward)};
      entry.refuse_unknown();
    }
    by_operator.refuse_unknown();
  }
  if (reader.has("attention")) {
    for (const auto& node : reader.required_sequence("attention")) {
      MappingReader entry(node, fmt::format("attention[{}].", table.attention.size()), faults);
      table.attention.push_back(read_attention(entry));
    }
  }
  reader.refuse_unknown();
  faults.throw_if_any();
  return table;
}

bool is_operator_table(const std::string& text)
{
  return text.find(in_quotes(schema)) != std::string::npos;
}

}  // namespace isobar::compute
