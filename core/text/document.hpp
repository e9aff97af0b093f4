#pragma once

#include "core/errors.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

/// A value of a YAML or JSON file, with its line. Parsing is strict: it refuses duplicate keys, anchors, aliases, tags,
/// several documents, nesting over 64 levels, control characters, bytes that are not UTF-8 and, in JSON files, anything
/// that is not JSON. An empty YAML file is Null.
struct DocumentNode {
  enum class Kind { Null, Scalar, Sequence, Mapping };
  Kind kind = Kind::Null;
  int line = 0;         ///< from 1; for a mapping's member the line of its key
  bool quoted = false;  ///< a scalar in quotes: a text, never a number
  bool is_text = true;  ///< false for JSON numbers, true and false; any YAML scalar may be a text without quotes
  std::string scalar;
  std::vector<DocumentNode> items;  ///< of a sequence
  struct Member;
  std::vector<Member> members;  ///< of a mapping, in the order of the file
};

struct DocumentNode::Member {
  std::string key;
  DocumentNode value;
};

/// Parses a YAML file; `name` stands for it in messages. @throws InputError "name:line: …" for text that is not YAML.
DocumentNode parse_yaml(const std::string& text, const std::string& name);
/// Parses a JSON file; `name` stands for it in messages. @throws InputError "name:line: …" for text that is not JSON.
DocumentNode parse_json(const std::string& text, const std::string& name);
/// Passes the members of one large JSON mapping to `take`, one after the other as they are read. Each is freed when
/// `take` returns, so they take no more memory than the largest one. `take` must refuse duplicate keys itself.
/// @throws InputError as parse_json does, for text that is not a mapping, and for a member with more than `most_values`
/// values.
void read_json_members(const std::string& text, const std::string& name, std::size_t most_values,
                       const std::function<void(const DocumentNode::Member&)>& take);

/// Collects the faults of one file, so that the user sees them at once, ordered by line. Keeps the first ones and
/// counts the others, since a file may have millions.
class FaultList {
 public:
  explicit FaultList(const std::string& name) : name_(shown(name, name.size())) {}
  /// Adds "name:line: key: what", without the key when it is "", and without the line when it is 0, as for an option.
  /// Each fault is one line; long texts are cut.
  void add(int line, const std::string& key, const std::string& what);
  /// Adds a fault in something that `line` refers to, such as another file. The fault names its own place.
  void add(int line, const InputError& fault);
  bool empty() const { return faults_.empty(); }
  /// @throws InputError with the first 20 faults, if there is one, and with the number of others: "name: and 5 more".
  void throw_if_any() const;

 private:
  void keep(int line, std::string fault);

  std::string name_;
  std::multimap<int, std::string> faults_;  // by line
  std::size_t left_out_ = 0;
};

/// Reads the members of one mapping by key, and refuses keys that were not read. On a fault the reader adds it to the
/// list and returns a default value, so callers must call `faults.throw_if_any()` before they use any value. A null is
/// not a value; only `optional_number` treats it as absent.
///
///     MappingReader model(node, "", faults);
///     const auto layers = model.required_count("layers");
///     const auto memory = model.optional_bytes("memory");
///     model.refuse_unknown();
class MappingReader {
 public:
  /// `path` precedes each key in messages, such as "stages[3].". A node that is not a mapping is one fault; missing
  /// keys add no more.
  MappingReader(const DocumentNode& node, std::string path, FaultList& faults);

  int line() const { return node_->line; }
  bool has(const std::string& key) const;
  /// All keys, in the order of the file; for mappings whose keys are names.
  std::vector<std::string> keys() const;

  /// The member's node; null if it is missing, which is a fault ("KEY: missing; …") for `required`.
  const DocumentNode* required(const std::string& key);
  const DocumentNode* optional(const std::string& key);

  /// A text; in JSON it must be a string.
  std::string required_text(const std::string& key);
  std::optional<std::string> optional_text(const std::string& key);
  /// A whole number in [lowest, highest].
  std::uint64_t required_count(const std::string& key, std::uint64_t lowest = 0, std::uint64_t highest = max_count);
  std::optional<std::uint64_t> optional_count(const std::string& key, std::uint64_t lowest = 0,
                                              std::uint64_t highest = max_count);
  /// A finite number without unit (for JSON keys that name their unit), from `lowest` to `highest`.
  double required_number(const std::string& key, double lowest = 0, double highest = max_number);
  /// A number or null.
  std::optional<double> optional_number(const std::string& key, double lowest = 0);
  std::optional<bool> optional_boolean(const std::string& key);
  /// A number and a unit in one string (quantity_text.hpp).
  Bytes required_bytes(const std::string& key);
  std::optional<Bytes> optional_bytes(const std::string& key);
  Flops required_flops(const std::string& key);
  std::optional<Flops> optional_flops(const std::string& key);
  /// One of `choices`; the fault lists them and, of several, suggests the nearest.
  std::string required_choice(const std::string& key, const std::vector<std::string>& choices);
  std::optional<std::string> optional_choice(const std::string& key, const std::vector<std::string>& choices);
  /// The nodes of a sequence; a fault when the member is not one.
  const std::vector<DocumentNode>& required_sequence(const std::string& key);

  /// Adds a fault for each key that was not read: "parmas: unknown key; did you mean params?".
  void refuse_unknown();

  void add_fault(const std::string& key, const std::string& what);
  std::string path_of(const std::string& key) const { return path_ + key; }

  static constexpr std::uint64_t max_count = 9'007'199'254'740'992;  // 2^53: exact as a double
  static constexpr double max_number = std::numeric_limits<double>::max();

 private:
  enum class Presence { Required, Optional };
  /// `expected` describes a right value; `read` throws std::invalid_argument with the whole fault.
  template <typename Read>
  auto read_scalar(Presence presence, const std::string& key, const std::string& expected, Read read)
      -> std::optional<decltype(read(std::declval<const DocumentNode&>()))>;
  std::optional<std::uint64_t> read_count(Presence presence, const std::string& key, std::uint64_t lowest,
                                          std::uint64_t highest);
  std::optional<double> read_number(Presence presence, const std::string& key, double lowest, double highest);
  std::optional<Bytes> read_bytes(Presence presence, const std::string& key);
  std::optional<std::string> read_text(Presence presence, const std::string& key);
  std::optional<Flops> read_flops(Presence presence, const std::string& key);
  std::optional<std::string> read_choice(Presence presence, const std::string& key,
                                         const std::vector<std::string>& choices);
  /// The member, or null; if it is required and missing, adds a fault that ends with `expected`.
  const DocumentNode* find(Presence presence, const std::string& key, const std::string& expected);

  const DocumentNode* node_;
  std::string path_;
  FaultList* faults_;
  std::set<std::string> read_keys_;
};

}  // namespace isobar
