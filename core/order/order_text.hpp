#pragma once

#include "core/order/order.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace isobar {

struct DocumentNode;
class FaultList;
class MappingReader;

/// The letter of a computation in orders, CSV files and pictures: F Forward, B Backward, I BackwardInput,
/// W BackwardWeight. @throws std::logic_error for other opcodes.
char letter_of(Opcode opcode);
/// The computation with that letter; none for other characters.
std::optional<Opcode> opcode_from_letter(char letter);

/// A run as files write it: the number of times, and its slots between blanks.
///
/// A slot is a letter, the part, a point, the first micro-batch and the stride: "+" for 1, "-" for -1, "+2" and "-3"
/// for others, and nothing where the run has one time. "F0.3+ B0.0+" takes the forward of micro-batch 3 + j and then
/// the backward of micro-batch j in its j-th repetition.
///
/// I and W are the halves of a backward pass, B is the whole. A part that has W in its order, but no I, means I by B.
///
/// "F0.3+&" runs together with the backward pass in the slots after it, B or I and W (Slot::overlaps).
struct RunText {
  std::uint64_t times = 1;
  std::string slots;

  bool operator==(const RunText&) const = default;
};

/// The runs of an order as files write them. I is written as B where that is what B means.
std::vector<RunText> run_texts_of(const Order& order);

/// A task of an order that is not in loops yet.
struct ListedTask {
  Task task;
  bool overlaps = false;  ///< as Slot::overlaps
};

/// The order of a list of tasks, in few runs: finds loops of up to 256 slots from left to right, which do not part
/// passes that run together. O(tasks). @throws InputError as Order does.
Order with_loops(const std::vector<ListedTask>& tasks);

/// The tasks of an order, one after the other. O(tasks).
std::vector<ListedTask> listed_tasks(const Order& order);

/// Whether any passes of an order run together. O(slots).
bool has_overlaps(const Order& order);

/// What the order of a device may name.
struct OrderLimits {
  std::size_t parts = 1;           ///< stages of the device
  std::uint64_t microbatches = 1;  ///< of a step
};

/// Largest number of times of a run, and of micro-batches of a step.
inline constexpr std::uint64_t most_repetitions = 1'000'000'000;

/// Reads the order of a device: a list of runs [times, "slots"]. Adds each fault to `faults`, with `path`, the run and
/// the slot, and then returns an empty order.
Order read_order(const DocumentNode& node, const std::string& path, const OrderLimits& limits, FaultList& faults);

/// Reads a mapping of the orders of all devices; `parts` has the number of stages of each. Adds each fault to `faults`.
std::map<std::string, Order> read_orders(MappingReader& parent, const std::string& key,
                                         const std::map<std::string, std::size_t>& parts, std::uint64_t microbatches,
                                         FaultList& faults);

}  // namespace isobar
