#include "cli/commands/order_file.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/order/order_text.hpp"
#include "core/text/document.hpp"
#include "core/text/json_text.hpp"
#include "core/text/quantity_text.hpp"
#include "core/utf8.hpp"
#include "schedules/orders/listed.hpp"
#include "schedules/orders/order_csv.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>

namespace isobar::cli {

namespace {

using schedules::PipelineShape;

constexpr auto schema = "isobar-orders/1";
constexpr auto orders_key = "orders";

std::string in_json(const std::string& text)
{
  return json_line(nlohmann::json(text));
}

/// What a file gives instead of the micro-batches of a plan.
std::string other_microbatches(std::uint64_t found, std::uint64_t wanted)
{
  return fmt::format("{}; the plan has {}, so make one with --microbatches {}", counted(found, "micro-batch", "es"),
                     wanted, found);
}

/// Adds what is wrong with orders that were read from `reader`.
void check_orders(MappingReader& reader, const std::map<std::string, Order>& orders, const PipelineShape& shape,
                  FaultList& faults)
{
  std::vector<Order> by_rank;
  for (const auto& device : shape.devices) by_rank.push_back(orders.at(device));
  const auto names = schedules::names_in_plans(shape, by_rank);
  MappingReader devices(*reader.required(orders_key), fmt::format("{}.", orders_key), faults);
  for (const auto& [rank, what] : schedules::faults_of_listed(shape, by_rank, names)) {
    if (rank) {
      devices.add_fault(shape.devices[*rank], what);
    } else {
      reader.add_fault(orders_key, what);
    }
  }
}

std::map<std::string, Order> orders_from_json(const std::string& text, const std::string& name,
                                              const PipelineShape& shape)
{
  const auto document = parse_json(text, name);
  FaultList faults(name);
  MappingReader reader(document, "", faults);
  reader.required_choice("schema", {schema});
  reader.optional_text("schedule");
  const auto microbatches = reader.required_count("microbatches", 1, most_repetitions);
  if (faults.empty() && microbatches != shape.microbatches) {
    reader.add_fault("microbatches", other_microbatches(microbatches, shape.microbatches));
  }
  std::map<std::string, std::size_t> parts;
  const auto stages = schedules::stages_by_rank(shape);
  for (std::size_t rank = 0; rank < shape.ranks(); ++rank) parts[shape.devices[rank]] = stages[rank].size();
  std::vector<std::string> devices;
  for (const auto rank : shape.rank_of_stage) devices.push_back(shape.devices[rank]);
  std::vector<std::string> found;
  for (const auto& device : reader.required_sequence("device_of_stage")) found.push_back(device.scalar);
  if (faults.empty() && found != devices) {
    reader.add_fault("device_of_stage", fmt::format("is not that of the plan; write {}",
                                                    shown(fmt::format("{}", fmt::join(devices, ", ")))));
  }
  faults.throw_if_any();
  auto orders = read_orders(reader, orders_key, parts, shape.microbatches, faults);
  reader.refuse_unknown();
  faults.throw_if_any();
  check_orders(reader, orders, shape, faults);
  faults.throw_if_any();
  return orders;
}

/// "stage 1", "stages 0, 2".
std::string list_of(const std::vector<std::size_t>& stages)
{
  return fmt::format("{} {}", stages.size() == 1 ? "stage" : "stages", fmt::join(stages, ", "));
}

/// The order with passes in turn that run together.
Order in_turn(const Order& order)
{
  std::vector<isobar::Run> runs = order.runs();
  for (auto& run : runs) {
    for (auto& slot : run.slots) slot.overlaps = false;
  }
  return Order(std::move(runs));
}

std::map<std::string, Order> orders_from_csv(const std::string& text, const std::string& name,
                                             const PipelineShape& shape, bool has_experts)
{
  const auto csv = schedules::orders_from_csv(text, name);
  if (csv.shape.stages() != shape.stages()) {
    throw InputError(name, fmt::format("{}; the plan has {}", counted(csv.shape.stages(), "stage"), shape.stages()));
  }
  if (csv.shape.microbatches != shape.microbatches) {
    throw InputError(name, other_microbatches(csv.shape.microbatches, shape.microbatches));
  }
  const auto stages_of_rank = schedules::stages_by_rank(csv.shape);
  const auto stages_of_device = schedules::stages_by_rank(shape);
  std::map<std::string, Order> orders;
  for (std::size_t rank = 0; rank < csv.orders.size(); ++rank) {
    const auto& stages = stages_of_rank[rank];
    const std::size_t device = shape.rank_of_stage[stages.front()];
    if (stages != stages_of_device[device]) {
      throw InputError(fmt::format("{}:{}", name, rank + 1),  // each rank has a line
                       fmt::format("rank {}: has {}; in the plan, device {} has {}", rank, list_of(stages),
                                   shown(shape.devices[device]), list_of(stages_of_device[device])));
    }
    orders[shape.devices[device]] = has_experts ? csv.orders[rank] : in_turn(csv.orders[rank]);
  }
  return orders;
}

}  // namespace

std::string orders_to_json(const PipelineShape& shape, const std::vector<Order>& orders, const std::string& schedule)
{
  std::vector<std::string> devices;
  for (const auto rank : shape.rank_of_stage) devices.push_back(in_json(shape.devices[rank]));
  std::vector<std::string> by_device;
  for (std::size_t rank = 0; rank < shape.ranks(); ++rank) {
    std::vector<std::string> runs;
    for (const auto& [times, slots] : run_texts_of(orders[rank])) {
      runs.push_back(fmt::format("      [{}, {}]", times, in_json(slots)));
    }
    by_device.push_back(fmt::format("    {}: [\n{}\n    ]", in_json(shape.devices[rank]), fmt::join(runs, ",\n")));
  }
  return fmt::format(
      "{{\n  \"schema\": {},\n  \"schedule\": {},\n  \"microbatches\": {},\n"
      "  \"device_of_stage\": [{}],\n  \"orders\": {{\n{}\n  }}\n}}\n",
      in_json(schema), in_json(schedule), shape.microbatches, fmt::join(devices, ", "), fmt::join(by_device, ",\n"));
}

std::map<std::string, Order> read_order_file(const std::string& file, const PipelineShape& shape, bool has_experts)
{
  const std::string text = read_file(file);
  const std::size_t begin = text.starts_with(byte_order_mark) ? byte_order_mark.size() : 0;
  const auto first = text.find_first_not_of(" \t\r\n", begin);
  const bool is_json = first != std::string::npos && text[first] == '{';
  return is_json ? orders_from_json(text, file, shape) : orders_from_csv(text, file, shape, has_experts);
}

}  // namespace isobar::cli
