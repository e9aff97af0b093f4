#include "core/order/order_text.hpp"

#include "core/errors.hpp"
#include "core/text/document.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace isobar {

namespace {

constexpr std::array<std::pair<Opcode, char>, 4> letters = {
    {{Opcode::Forward, 'F'}, {Opcode::Backward, 'B'}, {Opcode::BackwardInput, 'I'}, {Opcode::BackwardWeight, 'W'}}};

/// The opcodes that each part of an order has.
using OpcodesOfParts = std::set<std::pair<std::uint32_t, Opcode>>;

OpcodesOfParts opcodes_of(const std::vector<Run>& runs)
{
  OpcodesOfParts opcodes;
  for (const auto& run : runs) {
    for (const auto& slot : run.slots) opcodes.emplace(slot.first.part, slot.first.opcode);
  }
  return opcodes;
}

/// True if W stands beside no backward pass of `other`, so that B and I of the part mean the same.
bool has_weights_without(Opcode other, std::uint32_t part, const OpcodesOfParts& opcodes)
{
  return opcodes.contains({part, Opcode::BackwardWeight}) && !opcodes.contains({part, other});
}

std::string stride_text(std::int64_t stride)
{
  if (stride == 1) return "+";
  return stride == -1 ? "-" : fmt::format("{:+}", stride);
}

/// Reads a slot from left to right.
class SlotReader {
 public:
  SlotReader(std::string_view text, std::uint64_t times) : text_(text), rest_(text), times_(times) {}

  /// @throws std::invalid_argument with the whole fault.
  Slot read()
  {
    const auto opcode = opcode_from_letter(rest_.front());
    if (!opcode) fail("begins with none of F, B, I and W; write a slot such as \"F0.3+\"");
    rest_.remove_prefix(1);
    const auto part = read_number();
    const bool overlaps = rest_.ends_with('&');
    if (overlaps) rest_.remove_suffix(1);
    const bool has_point = rest_.starts_with('.');
    if (has_point) rest_.remove_prefix(1);
    const auto first = has_point ? read_number() : std::nullopt;
    if (!part || !first || *part > most_parts) {
      fail("is not a slot; write a letter, the part, a point and the micro-batch, such as \"F0.3+\"");
    }
    return {{*opcode, static_cast<std::uint32_t>(*part), *first}, read_stride(), overlaps};
  }

 private:
  [[noreturn]] void fail(const std::string& what) const
  {
    throw std::invalid_argument(fmt::format("{} {}", in_quotes(text_), what));
  }

  /// A decimal number without leading zeros, at most most_repetitions; none where there is something else.
  std::optional<std::uint64_t> read_number()
  {
    std::uint64_t number = 0;
    const auto [end, status] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
    const auto length = static_cast<std::size_t>(end - rest_.data());
    if (status != std::errc{} || number > most_repetitions || (length > 1 && rest_.front() == '0')) return std::nullopt;
    rest_.remove_prefix(length);
    return number;
  }

  std::int64_t read_stride()
  {
    if (rest_.empty()) {
      if (times_ == 1) return 1;
      fail(
          fmt::format("has no stride in a run of {} times; write \"{}+\", or \"{}-\" downwards", times_, text_, text_));
    }
    const char sign = rest_.front();
    if (sign != '+' && sign != '-') fail("has something else than a stride at its end; write a slot such as \"F0.3+\"");
    rest_.remove_prefix(1);
    std::uint64_t size = 1;
    if (!rest_.empty()) {
      const auto number = read_number();
      if (!number || !rest_.empty() || *number < 2) {
        fail("has a wrong stride; write + for 1, - for -1, and a number of 2 or more behind it for others");
      }
      size = *number;
    }
    if (times_ == 1) return 1;
    return sign == '+' ? static_cast<std::int64_t>(size) : -static_cast<std::int64_t>(size);
  }

  static constexpr std::uint64_t most_parts = std::numeric_limits<std::uint32_t>::max();

  std::string_view text_;
  std::string_view rest_;
  std::uint64_t times_;
};

/// @throws std::invalid_argument if the slot leaves the limits.
void check_limits(std::string_view text, const Slot& slot, std::uint64_t times, const OrderLimits& limits)
{
  if (slot.first.part >= limits.parts) {
    throw std::invalid_argument(
        fmt::format("{} is of part {}; the device has {}", in_quotes(text), slot.first.part,
                    limits.parts == 1 ? "one part, 0" : fmt::format("{} parts, from 0", limits.parts)));
  }
  const auto first = static_cast<std::int64_t>(slot.first.microbatch);
  const auto last = first + static_cast<std::int64_t>(times - 1) * slot.stride;
  const auto lowest = std::min(first, last);
  const auto highest = std::max(first, last);
  if (lowest < 0 || highest >= static_cast<std::int64_t>(limits.microbatches)) {
    throw std::invalid_argument(fmt::format("{} reaches micro-batch {}; a step has {}, from 0", in_quotes(text),
                                            lowest < 0 ? lowest : highest, limits.microbatches));
  }
}

/// Whether slot `i` runs together with the backward pass of another micro-batch in the slots after it.
bool is_pair(const std::vector<Slot>& slots, std::size_t i)
{
  if (slots[i].first.opcode != Opcode::Forward || i + 1 == slots.size()) return false;
  const Task& backward = slots[i + 1].first;
  if (backward.opcode == Opcode::Backward) return true;
  if (backward.opcode != Opcode::BackwardInput || i + 2 == slots.size()) return false;
  const Slot& weights = slots[i + 2];
  return weights.stride == slots[i + 1].stride &&
         weights.first == Task{Opcode::BackwardWeight, backward.part, backward.microbatch};
}

/// The slots of a run. @throws std::invalid_argument naming the first wrong slot.
std::vector<Slot> read_slots(std::string_view text, std::uint64_t times, const OrderLimits& limits)
{
  std::vector<Slot> slots;
  while (true) {
    text.remove_prefix(std::min(text.size(), text.find_first_not_of(' ')));
    if (text.empty()) break;
    const auto word = text.substr(0, text.find(' '));
    text.remove_prefix(word.size());
    try {
      const Slot slot = SlotReader(word, times).read();
      check_limits(word, slot, times, limits);
      slots.push_back(slot);
    } catch (const std::invalid_argument& fault) {
      throw std::invalid_argument(fmt::format("slot {}: {}", slots.size() + 1, fault.what()));
    }
  }
  if (slots.empty()) throw std::invalid_argument("has no slot; write some, such as \"F0.0+ B0.0+\"");
  return slots;
}

/// @throws std::invalid_argument if the node is not [times, "slots"].
Run read_run(const DocumentNode& node, const OrderLimits& limits)
{
  const auto is_scalar = [](const DocumentNode& item) { return item.kind == DocumentNode::Kind::Scalar; };
  const auto& items = node.items;
  if (items.size() != 2 || !std::all_of(items.begin(), items.end(), is_scalar) || items[0].is_text ||
      !items[1].is_text) {
    throw std::invalid_argument("is not a run; write [times, \"slots\"], such as [3, \"F0.0+\"]");
  }
  const std::string& text = items[0].scalar;
  Run run;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), run.times);
  if (status != std::errc{} || end != text.data() + text.size() || run.times < 1 || run.times > most_repetitions) {
    throw std::invalid_argument(
        fmt::format("{} times; write a whole number from 1 to {}", shown(text), most_repetitions));
  }
  run.slots = read_slots(items[1].scalar, run.times, limits);
  return run;
}

/// How many tasks from `begin` on are repetitions of the `length` tasks there, each with a stride of its own.
std::size_t repeated(const std::vector<ListedTask>& tasks, std::size_t begin, std::size_t length)
{
  const auto stride = [&tasks, length](std::size_t i) {
    return static_cast<std::int64_t>(tasks[i + length].task.microbatch) -
           static_cast<std::int64_t>(tasks[i].task.microbatch);
  };
  std::size_t covered = length;
  for (std::size_t i = begin; i + length < tasks.size(); ++i) {
    const ListedTask& next = tasks[i + length];
    const bool repeats = next.task.opcode == tasks[i].task.opcode && next.task.part == tasks[i].task.part &&
                         next.overlaps == tasks[i].overlaps && (i < begin + length || stride(i) == stride(i - length));
    if (!repeats) break;
    ++covered;
  }
  return covered - covered % length;
}

/// By position, and behind the last one: whether a loop may begin or end there, as no passes that run together are
/// parted.
std::vector<bool> borders_of(const std::vector<ListedTask>& tasks)
{
  std::vector<bool> borders(tasks.size() + 1, true);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (!tasks[i].overlaps || i + 1 == tasks.size()) continue;
    borders[i + 1] = false;
    const bool has_halves = tasks[i + 1].task.opcode == Opcode::BackwardInput;
    if (has_halves && i + 2 < tasks.size()) borders[i + 2] = false;
  }
  return borders;
}

}  // namespace

char letter_of(Opcode opcode)
{
  for (const auto& [known, letter] : letters) {
    if (known == opcode) return letter;
  }
  throw std::logic_error("an order has computations only");
}

std::optional<Opcode> opcode_from_letter(char letter)
{
  for (const auto& [opcode, known] : letters) {
    if (known == letter) return opcode;
  }
  return std::nullopt;
}

std::vector<RunText> run_texts_of(const Order& order)
{
  const auto opcodes = opcodes_of(order.runs());
  std::vector<RunText> texts;
  for (const auto& run : order.runs()) {
    RunText text{run.times, ""};
    for (const auto& slot : run.slots) {
      const auto& [opcode, part, microbatch] = slot.first;
      const bool means_input = opcode == Opcode::BackwardInput && has_weights_without(Opcode::Backward, part, opcodes);
      text.slots +=
          fmt::format("{}{}{}.{}{}{}", text.slots.empty() ? "" : " ", means_input ? 'B' : letter_of(opcode), part,
                      microbatch, run.times == 1 ? "" : stride_text(slot.stride), slot.overlaps ? "&" : "");
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

Order with_loops(const std::vector<ListedTask>& tasks)
{
  constexpr std::size_t longest_body = 256;
  const std::vector<bool> borders = borders_of(tasks);
  std::vector<Run> runs;
  for (std::size_t begin = 0; begin < tasks.size();) {
    std::size_t body = 1;
    while (!borders[begin + body]) ++body;
    std::size_t covered = body;
    for (std::size_t length = body; length <= longest_body && begin + 2 * length <= tasks.size(); ++length) {
      if (!borders[begin + length]) continue;
      const std::size_t found = repeated(tasks, begin, length);
      if (found <= std::max(length, covered)) continue;
      body = length;
      covered = found;
    }
    const std::size_t times = covered / body;
    if (times > 1 || runs.empty() || runs.back().times > 1) runs.push_back({times, {}});
    for (std::size_t i = begin; i < begin + body; ++i) {
      const auto stride = [&](std::size_t next) {
        return static_cast<std::int64_t>(tasks[next].task.microbatch) -
               static_cast<std::int64_t>(tasks[i].task.microbatch);
      };
      runs.back().slots.push_back({tasks[i].task, times > 1 ? stride(i + body) : 1, tasks[i].overlaps});
    }
    begin += covered;
  }
  return Order(std::move(runs));
}

std::vector<ListedTask> listed_tasks(const Order& order)
{
  std::vector<ListedTask> tasks;
  for (const auto& [times, slots] : order.runs()) {
    for (std::uint64_t repetition = 0; repetition < times; ++repetition) {
      for (const auto& slot : slots) {
        tasks.push_back({order.at(tasks.size()), slot.overlaps});
      }
    }
  }
  return tasks;
}

bool has_overlaps(const Order& order)
{
  return std::any_of(order.runs().begin(), order.runs().end(), [](const Run& run) {
    return std::any_of(run.slots.begin(), run.slots.end(), [](const Slot& slot) { return slot.overlaps; });
  });
}

Order read_order(const DocumentNode& node, const std::string& path, const OrderLimits& limits, FaultList& faults)
{
  if (node.kind != DocumentNode::Kind::Sequence) {
    faults.add(node.line, path, "is not a list of runs; write them as [times, \"slots\"], such as [[3, \"F0.0+\"]]");
    return {};
  }
  std::vector<Run> runs;
  bool is_sound = true;
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    try {
      runs.push_back(read_run(node.items[i], limits));
    } catch (const std::invalid_argument& fault) {
      faults.add(node.items[i].line, fmt::format("{}[{}]", path, i), fault.what());
      is_sound = false;
    }
  }
  if (!is_sound) return {};
  const auto opcodes = opcodes_of(runs);
  for (auto& run : runs) {
    for (auto& slot : run.slots) {
      auto& [opcode, part, microbatch] = slot.first;
      if (opcode == Opcode::Backward && has_weights_without(Opcode::BackwardInput, part, opcodes)) {
        opcode = Opcode::BackwardInput;
      }
    }
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto& slots = runs[i].slots;
    for (std::size_t k = 0; k < slots.size(); ++k) {
      if (!slots[k].overlaps || is_pair(slots, k)) continue;
      faults.add(
          node.items[i].line, fmt::format("{}[{}]", path, i),
          fmt::format("slot {}: & is of a forward pass with a backward pass behind it, B or I and W; write such as "
                      "\"F0.3+& B0.0+\", or leave & out",
                      k + 1));
      return {};
    }
  }
  try {
    return Order(std::move(runs));
  } catch (const InputError& fault) {
    faults.add(node.line, path, fault.what());
    return {};
  }
}

std::map<std::string, Order> read_orders(MappingReader& parent, const std::string& key,
                                         const std::map<std::string, std::size_t>& parts, std::uint64_t microbatches,
                                         FaultList& faults)
{
  std::map<std::string, Order> orders;
  const DocumentNode* node = parent.required(key);
  if (node == nullptr) return orders;
  if (node->kind != DocumentNode::Kind::Mapping) {
    parent.add_fault(key, "is not an object; write the order of each device, such as {\"gpu0\": [[3, \"F0.0+\"]]}");
    return orders;
  }
  MappingReader reader(*node, parent.path_of(key) + ".", faults);
  for (const auto& device : reader.keys()) {
    const auto known = parts.find(device);
    const DocumentNode* runs = reader.required(device);
    if (known == parts.end()) {
      reader.add_fault(device, "no stage is on this device; give the order of the first device of each stage");
    } else {
      orders[device] = read_order(*runs, reader.path_of(device), {known->second, microbatches}, faults);
    }
  }
  for (const auto& [device, count] : parts) {
    if (!reader.has(device)) reader.add_fault(device, "missing; write the order of the first device of each stage");
  }
  return orders;
}

}  // namespace isobar
