#include "core/text/document.hpp"

#include "core/text/digits.hpp"
#include "core/text/quantity_text.hpp"
#include "core/text/separated.hpp"
#include "core/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <set>
#include <stdexcept>
#include <utility>

namespace isobar {

namespace {

/// "a whole number from 1 to 9", or "a whole number, 1 or more" if the limit is max_count.
std::string describe_count(std::uint64_t lowest, std::uint64_t highest)
{
  return highest == MappingReader::max_count ? fmt::format("a whole number, {} or more", lowest)
                                             : fmt::format("a whole number from {} to {}", lowest, highest);
}

/// "a number from 1 to 9", or "a number, 1 or more" if the limit is max_number.
std::string describe_number(double lowest, double highest)
{
  return highest == MappingReader::max_number ? fmt::format("a number, {} or more", lowest)
                                              : fmt::format("a number from {} to {}", lowest, highest);
}

/// Bytes of a fault that are shown; a value may be as long as the file.
constexpr std::size_t longest_fault = 500;

constexpr auto expected_size = "a number and a unit, such as \"80 GB\"";
constexpr auto expected_work = "a number and a unit, such as \"2 GFLOP\"";

std::string_view describe_kind(DocumentNode::Kind kind)
{
  switch (kind) {
    case DocumentNode::Kind::Null:
      return "has no value";
    case DocumentNode::Kind::Scalar:
      return "is a single value";
    case DocumentNode::Kind::Sequence:
      return "is a list";
    case DocumentNode::Kind::Mapping:
      return "is a mapping";
  }
  return "";
}

}  // namespace

void FaultList::add(int line, const std::string& key, const std::string& what)
{
  keep(line, fmt::format("{}{}: {}{}{}", name_, line == 0 ? "" : fmt::format(":{}", line), shown(key, 200),
                         key.empty() ? "" : ": ", shown(what, longest_fault)));
}

void FaultList::add(int line, const InputError& fault)
{
  keep(line, shown(fault.what(), longest_fault));
}

void FaultList::keep(int line, std::string fault)
{
  constexpr std::size_t most_shown = 20;
  faults_.emplace(line, std::move(fault));
  if (faults_.size() <= most_shown) return;
  faults_.erase(std::prev(faults_.end()));
  ++left_out_;
}

void FaultList::throw_if_any() const
{
  if (empty()) return;
  std::vector<std::string> lines;
  for (const auto& [line, fault] : faults_) lines.push_back(fault);
  if (left_out_ > 0) lines.push_back(fmt::format("{}: and {} more", name_, left_out_));
  throw InputError(lines);
}

MappingReader::MappingReader(const DocumentNode& node, std::string path, FaultList& faults)
    : node_(&node), path_(std::move(path)), faults_(&faults)
{
  if (node.kind == DocumentNode::Kind::Mapping) return;
  const std::string owner = path_.ends_with('.') ? path_.substr(0, path_.size() - 1) : path_;
  const bool is_empty_file = owner.empty() && node.kind == DocumentNode::Kind::Null;
  faults_->add(node.line, owner,
               fmt::format("{}{}; write \"key: value\" pairs", owner.empty() ? "the file " : "",
                           is_empty_file ? "is empty" : describe_kind(node.kind)));
}

bool MappingReader::has(const std::string& key) const
{
  return std::any_of(node_->members.begin(), node_->members.end(),
                     [&](const auto& member) { return member.key == key; });
}

std::vector<std::string> MappingReader::keys() const
{
  std::vector<std::string> keys;
  for (const auto& member : node_->members) keys.push_back(member.key);
  return keys;
}

const DocumentNode* MappingReader::find(Presence presence, const std::string& key, const std::string& expected)
{
  read_keys_.insert(key);
  for (const auto& [name, node] : node_->members) {
    if (name == key) return &node;
  }
  if (presence == Presence::Required && node_->kind == DocumentNode::Kind::Mapping) {
    add_fault(key, "missing; write " + expected);
  }
  return nullptr;
}

const DocumentNode* MappingReader::required(const std::string& key)
{
  return find(Presence::Required, key, "a value");
}

const DocumentNode* MappingReader::optional(const std::string& key)
{
  return find(Presence::Optional, key, "");
}

template <typename Read>
auto MappingReader::read_scalar(Presence presence, const std::string& key, const std::string& expected, Read read)
    -> std::optional<decltype(read(std::declval<const DocumentNode&>()))>
{
  const DocumentNode* node = find(presence, key, expected);
  if (!node) return std::nullopt;
  if (node->kind != DocumentNode::Kind::Scalar) {
    add_fault(key, fmt::format("{}; write {}", describe_kind(node->kind), expected));
    return std::nullopt;
  }
  try {
    return read(*node);
  } catch (const std::invalid_argument& fault) {
    add_fault(key, fault.what());
    return std::nullopt;
  }
}

std::optional<std::string> MappingReader::read_text(Presence presence, const std::string& key)
{
  return read_scalar(presence, key, "a string", [](const DocumentNode& node) {
    if (!node.is_text)
      throw std::invalid_argument(fmt::format("{0} is not a string; write \"{0}\"", shown(node.scalar)));
    return node.scalar;
  });
}

std::string MappingReader::required_text(const std::string& key)
{
  return read_text(Presence::Required, key).value_or("");
}

std::optional<std::string> MappingReader::optional_text(const std::string& key)
{
  return read_text(Presence::Optional, key);
}

std::optional<std::uint64_t> MappingReader::read_count(Presence presence, const std::string& key, std::uint64_t lowest,
                                                       std::uint64_t highest)
{
  const std::string expected = describe_count(lowest, highest);
  return read_scalar(presence, key, expected, [&](const DocumentNode& node) {
    const auto& text = node.scalar;
    const bool is_whole_number =
        !text.empty() && std::all_of(text.begin(), text.end(), is_digit) && (text.size() == 1 || text.front() != '0');
    if (!is_whole_number || node.quoted) {
      throw std::invalid_argument(fmt::format("{} is not a whole number; write {}{}", in_quotes(text), expected,
                                              is_whole_number ? " without quotes" : ""));
    }
    std::uint64_t count = 0;
    const auto status = std::from_chars(text.data(), text.data() + text.size(), count).ec;
    if (status != std::errc{} || count < lowest || count > highest) {
      throw std::invalid_argument(
          fmt::format("{} is out of range; write a whole number from {} to {}", in_quotes(text), lowest, highest));
    }
    return count;
  });
}

std::uint64_t MappingReader::required_count(const std::string& key, std::uint64_t lowest, std::uint64_t highest)
{
  return read_count(Presence::Required, key, lowest, highest).value_or(lowest);
}

std::optional<std::uint64_t> MappingReader::optional_count(const std::string& key, std::uint64_t lowest,
                                                           std::uint64_t highest)
{
  return read_count(Presence::Optional, key, lowest, highest);
}

std::optional<double> MappingReader::read_number(Presence presence, const std::string& key, double lowest,
                                                 double highest)
{
  const std::string expected = describe_number(lowest, highest);
  return read_scalar(presence, key, expected, [&](const DocumentNode& node) {
    const std::string_view text = node.scalar;
    const std::string_view magnitude = text.substr(text.starts_with('-') ? 1 : 0);
    double number = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
    // from_chars also reads "inf" and "nan".
    const bool is_number = !magnitude.empty() && is_digit(magnitude.front()) && end == text.data() + text.size();
    if (!is_number || node.quoted) {
      throw std::invalid_argument(fmt::format("{} is not a number; write {}{}", in_quotes(text), expected,
                                              is_number ? ", without quotes" : ""));
    }
    if (status != std::errc{} || !std::isfinite(number) || number < lowest || number > highest) {
      throw std::invalid_argument(fmt::format("{} is out of range; write {}", in_quotes(text), expected));
    }
    return number;
  });
}

double MappingReader::required_number(const std::string& key, double lowest, double highest)
{
  return read_number(Presence::Required, key, lowest, highest).value_or(lowest);
}

std::optional<double> MappingReader::optional_number(const std::string& key, double lowest)
{
  const DocumentNode* node = optional(key);
  if (node && node->kind == DocumentNode::Kind::Null) return std::nullopt;
  return read_number(Presence::Optional, key, lowest, max_number);
}

std::optional<bool> MappingReader::optional_boolean(const std::string& key)
{
  return read_scalar(Presence::Optional, key, "true or false", [](const DocumentNode& node) {
    if (node.quoted || (node.scalar != "true" && node.scalar != "false")) {
      throw std::invalid_argument(fmt::format("{} is not a boolean; write true or false{}", in_quotes(node.scalar),
                                              node.quoted ? " without quotes" : ""));
    }
    return node.scalar == "true";
  });
}

std::optional<Bytes> MappingReader::read_bytes(Presence presence, const std::string& key)
{
  return read_scalar(presence, key, expected_size, [](const auto& node) { return bytes_from_text(node.scalar); });
}

Bytes MappingReader::required_bytes(const std::string& key)
{
  return read_bytes(Presence::Required, key).value_or(Bytes(0));
}

std::optional<Bytes> MappingReader::optional_bytes(const std::string& key)
{
  return read_bytes(Presence::Optional, key);
}

std::optional<Flops> MappingReader::read_flops(Presence presence, const std::string& key)
{
  return read_scalar(presence, key, expected_work, [](const auto& node) { return flops_from_text(node.scalar); });
}

Flops MappingReader::required_flops(const std::string& key)
{
  return read_flops(Presence::Required, key).value_or(Flops(0));
}

std::optional<Flops> MappingReader::optional_flops(const std::string& key)
{
  return read_flops(Presence::Optional, key);
}

std::optional<std::string> MappingReader::read_choice(Presence presence, const std::string& key,
                                                      const std::vector<std::string>& choices)
{
  const bool has_choice = choices.size() > 1;
  const auto listed = fmt::format("{}{}", has_choice ? "one of " : "", fmt::join(choices, ", "));
  return read_scalar(presence, key, listed, [&](const DocumentNode& node) {
    if (std::find(choices.begin(), choices.end(), node.scalar) == choices.end()) {
      const auto nearest = has_choice ? nearest_word(node.scalar, choices) : "";
      throw std::invalid_argument(fmt::format("{} is not {}{}", in_quotes(node.scalar), listed,
                                              nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
    }
    return node.scalar;
  });
}

std::string MappingReader::required_choice(const std::string& key, const std::vector<std::string>& choices)
{
  return read_choice(Presence::Required, key, choices).value_or(choices.front());
}

std::optional<std::string> MappingReader::optional_choice(const std::string& key,
                                                          const std::vector<std::string>& choices)
{
  return read_choice(Presence::Optional, key, choices);
}

const std::vector<DocumentNode>& MappingReader::required_sequence(const std::string& key)
{
  static const std::vector<DocumentNode> none;
  const DocumentNode* node = find(Presence::Required, key, "a list");
  if (!node) return none;
  if (node->kind != DocumentNode::Kind::Sequence) {
    add_fault(key, fmt::format("{}; write a list", describe_kind(node->kind)));
    return none;
  }
  return node->items;
}

namespace {

/// Keys that have a word in common with one, such as experts with num_experts.
std::vector<std::string> keys_like(const std::string& key, const std::vector<std::string>& known)
{
  constexpr std::size_t shortest_word = 3;
  const auto words_of = [](const std::string& text) {
    std::set<std::string> words;
    for (const auto word : texts_between(text, '_')) {
      if (word.size() >= shortest_word && word != "num") words.emplace(word);
    }
    return words;
  };
  const auto words = words_of(key);
  std::vector<std::string> like;
  for (const auto& each : known) {
    const auto own = words_of(each);
    if (std::any_of(words.begin(), words.end(), [&](const auto& word) { return own.contains(word); })) {
      like.push_back(each);
    }
  }
  return like;
}

/// What to write instead of an unknown key: of many keys, those that are like it.
std::string keys_in_words(const std::string& key, const std::vector<std::string>& known)
{
  constexpr std::size_t most_listed = 60;  // more do not fit into a message
  const auto like = known.size() > most_listed ? keys_like(key, known) : std::vector<std::string>();
  if (like.size() == 1) return fmt::format("did you mean {}?", like.front());
  return like.empty() ? fmt::format("the keys here are {}", fmt::join(known, ", "))
                      : fmt::format("keys like it are {}", fmt::join(like, ", "));
}

}  // namespace

void MappingReader::refuse_unknown()
{
  const std::vector<std::string> known(read_keys_.begin(), read_keys_.end());
  std::vector<std::string> absent;
  for (const auto& key : known) {
    if (!has(key)) absent.push_back(key);
  }
  for (const auto& [key, node] : node_->members) {
    if (read_keys_.contains(key)) continue;
    // A setting, which has no line, may be meant for a key that is there.
    const auto nearest = nearest_word(key, node.line == 0 ? known : absent);
    faults_->add(node.line, path_of(key),
                 nearest.empty() ? fmt::format("unknown key; {}", keys_in_words(key, known))
                                 : fmt::format("unknown key; did you mean {}?", nearest));
  }
}

void MappingReader::add_fault(const std::string& key, const std::string& what)
{
  int where = line();
  for (const auto& [name, node] : node_->members) {
    if (name == key) where = node.line;
  }
  faults_->add(where, path_of(key), what);
}

}  // namespace isobar
