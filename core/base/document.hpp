#pragma once

#include "core/errors.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

/// A value of a YAML or JSON file that knows its line. Parsed strictly: duplicate keys, anchors, aliases, tags, several
/// documents, nesting over 64 levels, control characters, bytes that are no UTF-8 and, in JSON, anything that is not
/// JSON are refused. An empty YAML file is Null.
struct DocumentNode {
  enum class Kind { Null, Scalar, Sequence, Mapping };
  Kind kind = Kind::Null;
  int line = 0;         ///< from 1; of a mapping's member: the line of its key
  bool quoted = false;  ///< a scalar written in quotes: a text, never a number
  bool is_text =
      true;  ///< false for numbers and truth values of JSON; what stands in YAML may be a text without quotes
  std::string scalar;
  std::vector<DocumentNode> items;  ///< of a sequence
  struct Member;
  std::vector<Member> members;  ///< of a mapping, in the file's order
};

struct DocumentNode::Member {
  std::string key;
  DocumentNode value;
};

/// @throws InputError "name:line: …" for text that is no YAML.
DocumentNode parse_yaml(const std::string& text, const std::string& name);
/// @throws InputError "name:line: …" for text that is no JSON.
DocumentNode parse_json(const std::string& text, const std::string& name);
/// The members of one large JSON mapping, one after the other: each is handed over when it has been read, and gone when
/// `take` returns, which refuses what is given twice. So they take no more memory than the largest one.
/// @throws InputError as parse_json does, for what is no mapping, and for a member with more than `most_values` values.
void read_json_members(const std::string& text, const std::string& name, std::size_t most_values,
                       const std::function<void(const DocumentNode::Member&)>& take);

/// Collects the faults of one file, so that the user sees all at once, first line first.
class FaultList {
 public:
  explicit FaultList(const std::string& name) : name_(shown(name, name.size())) {}
  /// "name:line: key: what"; without the key when it is "". Each fault is one line; what is too long to show is cut.
  void add(int line, const std::string& key, const std::string& what);
  /// A fault in what `line` refers to, such as another file, which names its own place.
  void add(int line, const InputError& fault);
  bool empty() const { return faults_.empty(); }
  /// @throws InputError with every fault, if there is one.
  void throw_if_any() const;

 private:
  std::string name_;
  std::vector<std::pair<int, std::string>> faults_;
};

/// Reads the members of one mapping, each at most once, and refuses what nobody asked for. A fault goes to the list and
/// the reader goes on with a default value, so callers end with `faults.throw_if_any()` before they use anything. A
/// null is no value: only `optional_number` takes it for an absent one.
///
///     MappingReader model(node, "", faults);
///     const auto layers = model.required_count("layers");
///     const auto memory = model.optional_bytes("memory");
///     model.refuse_unknown();
class MappingReader {
 public:
  /// `path` stands before each key in messages, such as "stages[3].". A node that is no mapping is one fault, and no
  /// further one follows for what it lacks.
  MappingReader(const DocumentNode& node, std::string path, FaultList& faults);

  int line() const { return node_->line; }
  bool has(const std::string& key) const;
  /// Every key, in the order of the file; for mappings whose keys are names.
  std::vector<std::string> keys() const;

  /// The member's node, or null and a fault "KEY: missing; …" / null without one.
  const DocumentNode* required(const std::string& key);
  const DocumentNode* optional(const std::string& key);

  /// In JSON a string alone.
  std::string required_text(const std::string& key);
  std::optional<std::string> optional_text(const std::string& key);
  /// A whole number in [lowest, highest].
  std::uint64_t required_count(const std::string& key, std::uint64_t lowest = 0, std::uint64_t highest = max_count);
  std::optional<std::uint64_t> optional_count(const std::string& key, std::uint64_t lowest = 0,
                                              std::uint64_t highest = max_count);
  /// A finite number without unit (JSON keys that carry their unit), not below `lowest`.
  double required_number(const std::string& key, double lowest = 0);
  /// A number or null.
  std::optional<double> optional_number(const std::string& key, double lowest = 0);
  std::optional<bool> optional_boolean(const std::string& key);
  /// Number and unit in one string.
  Bytes required_bytes(const std::string& key);
  std::optional<Bytes> optional_bytes(const std::string& key);
  Flops required_flops(const std::string& key);
  std::optional<Flops> optional_flops(const std::string& key);
  /// One of `choices`; the fault lists them and the nearest.
  std::string required_choice(const std::string& key, const std::vector<std::string>& choices);
  std::optional<std::string> optional_choice(const std::string& key, const std::vector<std::string>& choices);
  /// Sequences of mappings, texts…: the nodes; a fault when it is no sequence.
  const std::vector<DocumentNode>& required_sequence(const std::string& key);

  /// A fault for each key that was not asked for: "parmas: unknown key; did you mean params?".
  void refuse_unknown();

  void add_fault(const std::string& key, const std::string& what);
  std::string path_of(const std::string& key) const { return path_ + key; }

  static constexpr std::uint64_t max_count = 9'007'199'254'740'992;  // 2^53: exact as a double

 private:
  enum class Presence { Required, Optional };
  /// `expected` says what would be right; `read` throws std::invalid_argument with the whole fault.
  template <typename Read>
  auto read_scalar(Presence presence, const std::string& key, const std::string& expected, Read read)
      -> std::optional<decltype(read(std::declval<const DocumentNode&>()))>;
  std::optional<std::uint64_t> read_count(Presence presence, const std::string& key, std::uint64_t lowest,
                                          std::uint64_t highest);
  std::optional<double> read_number(Presence presence, const std::string& key, double lowest);
  std::optional<Bytes> read_bytes(Presence presence, const std::string& key);
  std::optional<std::string> read_text(Presence presence, const std::string& key);
  std::optional<Flops> read_flops(Presence presence, const std::string& key);
  std::optional<std::string> read_choice(Presence presence, const std::string& key,
                                         const std::vector<std::string>& choices);
  /// The member, or null; where it is required and missing, a fault that ends with `expected`.
  const DocumentNode* find(Presence presence, const std::string& key, const std::string& expected);

  const DocumentNode* node_;
  std::string path_;
  FaultList* faults_;
  std::set<std::string> asked_;
};

}  // namespace isobar
