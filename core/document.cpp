#include "core/document.hpp"

#include "core/quantity_text.hpp"
#include "core/utf8.hpp"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace isobar {

namespace {

/// Puts the nodes of a file together from the events of either parser, and refuses what both formats let through.
class TreeBuilder {
 public:
  explicit TreeBuilder(const std::string& name) : name_(name) { root_.line = 1; }

  bool expects_key() const { return !open_.empty() && is_mapping() && !open_.back().has_key; }

  void key(int line, const std::string& text)
  {
    auto& mapping = open_.back();
    mapping.has_key = true;
    mapping.node.members.push_back({text, node_of(DocumentNode::Kind::Null, line)});
  }

  void null(int line) { add(node_of(DocumentNode::Kind::Null, line)); }

  void scalar(int line, const std::string& text, bool quoted, bool is_text)
  {
    DocumentNode node = node_of(DocumentNode::Kind::Scalar, line);
    node.quoted = quoted;
    node.is_text = is_text;
    node.scalar = text;
    add(std::move(node));
  }

  void open(DocumentNode::Kind kind, int line)
  {
    constexpr std::size_t deepest = 64;
    if (open_.size() == deepest) fail(line, fmt::format("nested deeper than {} levels; flatten it", deepest));
    open_.push_back({node_of(kind, line), false});
  }

  void close()
  {
    DocumentNode node = std::move(open_.back().node);
    open_.pop_back();
    refuse_duplicates(node);
    add(std::move(node));
  }

  DocumentNode take_root() { return std::move(root_); }

  [[noreturn]] void fail(int line, const std::string& what) const
  {
    throw InputError(fmt::format("{}:{}", name_, line), what);
  }

 private:
  struct Open {
    DocumentNode node;
    bool has_key;  ///< of a mapping: the last member waits for its value
  };

  static DocumentNode node_of(DocumentNode::Kind kind, int line)
  {
    DocumentNode node;
    node.kind = kind;
    node.line = line;
    return node;
  }

  bool is_mapping() const { return open_.back().node.kind == DocumentNode::Kind::Mapping; }

  void add(DocumentNode node)
  {
    if (open_.empty()) {
      root_ = std::move(node);
    } else if (is_mapping()) {
      auto& member = open_.back().node.members.back().value;
      node.line = member.line;
      member = std::move(node);
      open_.back().has_key = false;
    } else {
      open_.back().node.items.push_back(std::move(node));
    }
  }

  void refuse_duplicates(const DocumentNode& node) const
  {
    std::vector<const DocumentNode::Member*> members;
    members.reserve(node.members.size());
    for (const auto& member : node.members) members.push_back(&member);
    std::stable_sort(members.begin(), members.end(), [](auto a, auto b) { return a->key < b->key; });
    const auto twice =
        std::adjacent_find(members.begin(), members.end(), [](auto a, auto b) { return a->key == b->key; });
    if (twice == members.end()) return;
    fail(twice[1]->value.line,
         fmt::format("{}: given twice, first in line {}; remove one", shown(twice[0]->key), twice[0]->value.line));
  }

  const std::string& name_;
  std::vector<Open> open_;
  DocumentNode root_;
};

class YamlEvents : public YAML::EventHandler {
 public:
  YamlEvents(const std::string& text, TreeBuilder& tree) : text_(text), tree_(tree) {}

  void OnDocumentStart(const YAML::Mark& mark) override
  {
    if (begun_) tree_.fail(line_of(mark), "a second document; a file holds one");
    begun_ = true;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override
  {
    refuse_anchor(mark, anchor);
    if (tree_.expects_key()) tree_.fail(line_of(mark), "a key is missing; write \"key: value\"");
    tree_.null(line_of(mark));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override
  {
    tree_.fail(line_of(mark), "an alias (*); write the value again");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override
  {
    refuse_anchor(mark, anchor);
    // yaml-cpp gives quoted texts the tag "!".
    const char first = text_.at(static_cast<std::size_t>(mark.pos));
    const bool is_quoted = tag == "!" && first != '!';
    if (!is_quoted) refuse_tag(mark, tag);
    if (is_quoted) last_quoted_ = mark;
    if (tree_.expects_key()) {
      tree_.key(line_of(mark), value);
    } else {
      tree_.scalar(line_of(mark), value, is_quoted, true);
    }
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override
  {
    open(DocumentNode::Kind::Sequence, mark, tag, anchor);
  }
  void OnSequenceEnd() override { tree_.close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override
  {
    open(DocumentNode::Kind::Mapping, mark, tag, anchor);
  }
  void OnMapEnd() override { tree_.close(); }

  /// yaml-cpp takes the end of the file for the end of a quoted text, which then is the last one.
  void refuse_open_quotes() const
  {
    if (last_quoted_.is_null()) return;
    auto at = static_cast<std::size_t>(last_quoted_.pos);
    const char quote = text_.at(at);
    for (++at; at < text_.size(); ++at) {
      const bool escapes = quote == '"' ? text_[at] == '\\' : text_.compare(at, 2, "''") == 0;
      if (escapes) {
        ++at;
      } else if (text_[at] == quote) {
        return;
      }
    }
    tree_.fail(line_of(last_quoted_), "not YAML: end of quoted text not found");
  }

 private:
  static int line_of(const YAML::Mark& mark) { return mark.line + 1; }

  void open(DocumentNode::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor)
  {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    if (tree_.expects_key()) tree_.fail(line_of(mark), "a list or mapping as a key; a key is a text");
    tree_.open(kind, line_of(mark));
  }

  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) const
  {
    if (anchor != 0) tree_.fail(line_of(mark), "an anchor (&); write the value where it is needed");
  }

  /// "?" is yaml-cpp's mark of a value without a tag.
  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const
  {
    if (!tag.empty() && tag != "?") {
      tree_.fail(line_of(mark), fmt::format("a tag ({}); write the value alone", shown(tag)));
    }
  }

  const std::string& text_;
  TreeBuilder& tree_;
  bool begun_ = false;
  YAML::Mark last_quoted_ = YAML::Mark::null_mark();
};

/// How far the JSON parser has read.
struct JsonPosition {
  int line = 1;  ///< of the last character that was read
  char last = 0;
};

/// Characters for the JSON parser, which reads each once. It tells of a value when it has read its last character, or
/// one more behind a number; a line break is in the line that it ends, so `line` is the value's in any case.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, JsonPosition& position) : at_(at), position_(&position) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++()
  {
    if (position_->last == '\n') ++position_->line;
    position_->last = *at_++;
    return *this;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) { return a.at_ == b.at_; }

 private:
  const char* at_;
  JsonPosition* position_;
};

class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonEvents(TreeBuilder& tree, const JsonPosition& position) : tree_(tree), position_(position) {}

  bool null() override { return tree_.null(position_.line), true; }
  bool boolean(bool value) override { return plain(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return plain(fmt::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return plain(fmt::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return plain(text); }
  bool string(string_t& text) override { return tree_.scalar(position_.line, text, true, true), true; }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return tree_.open(DocumentNode::Kind::Mapping, position_.line), true; }
  bool key(string_t& text) override { return tree_.key(position_.line, text), true; }
  bool end_object() override { return tree_.close(), true; }
  bool start_array(std::size_t) override { return tree_.open(DocumentNode::Kind::Sequence, position_.line), true; }
  bool end_array() override { return tree_.close(), true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& fault) override
  {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error …; last read: '…'"
    std::string what = fault.what();
    if (const auto begin = what.find("column "); begin != std::string::npos) what.erase(0, what.find(": ", begin) + 2);
    what = what.substr(what.starts_with('[') ? what.find("] ") + 2 : 0);
    tree_.fail(position_.line, "not JSON: " + shown(what.substr(0, what.find("; last read")), 200));
  }

 private:
  bool plain(const std::string& text) { return tree_.scalar(position_.line, text, false, false), true; }

  TreeBuilder& tree_;
  const JsonPosition& position_;
};

constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

/// yaml-cpp takes byte 4 for the end of the file and checks no encoding.
void refuse_what_is_no_text(const std::string& text, const TreeBuilder& tree)
{
  int line = 1;
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (is_control(text[at]) && byte != '\t' && byte != '\n' && byte != '\r') {
      tree.fail(line, fmt::format("not YAML: the control character \\x{:02x}; write text in UTF-8", byte));
    }
    const std::size_t length = utf8_length(std::string_view(text).substr(at));
    if (length == 0) tree.fail(line, fmt::format("not YAML: the byte \\x{:02x}; write text in UTF-8", byte));
    if (byte == '\n') ++line;
    at += length;
  }
}

bool is_digit(char character)
{
  return character >= '0' && character <= '9';
}

/// "whole number from 1 to 9", or "whole number, 1 or more" without a limit that a person would meet.
std::string count_in_words(std::uint64_t lowest, std::uint64_t highest)
{
  return highest == MappingReader::max_count ? fmt::format("a whole number, {} or more", lowest)
                                             : fmt::format("a whole number from {} to {}", lowest, highest);
}

/// Bytes of a fault that are shown; a value may be as long as the file.
constexpr std::size_t longest_fault = 500;

constexpr auto size_in_words = "a number and a unit, such as \"80 GB\"";
constexpr auto work_in_words = "a number and a unit, such as \"2 GFLOP\"";

std::string_view kind_in_words(DocumentNode::Kind kind)
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

DocumentNode parse_yaml(const std::string& file, const std::string& name)
{
  const std::string text = file.substr(file.starts_with(byte_order_mark) ? byte_order_mark.size() : 0);
  TreeBuilder tree(name);
  refuse_what_is_no_text(text, tree);
  YamlEvents events(text, tree);
  std::istringstream stream(text);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(events)) {
    }
  } catch (const YAML::Exception& fault) {
    const auto last_line = 1 + static_cast<int>(std::count(text.begin(), text.end() - 1, '\n'));
    tree.fail(std::min(fault.mark.line + 1, last_line), "not YAML: " + shown(fault.msg));
  }
  events.refuse_open_quotes();
  return tree.take_root();
}

DocumentNode parse_json(const std::string& text, const std::string& name)
{
  TreeBuilder tree(name);
  // nlohmann takes it for the end of the file.
  if (const auto nul = text.find('\0'); nul != std::string::npos) {
    const auto lines_before = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(nul), '\n');
    tree.fail(1 + static_cast<int>(lines_before), "not JSON: the control character \\x00; write text in UTF-8");
  }
  JsonPosition position;
  JsonEvents events(tree, position);
  nlohmann::json::sax_parse(CountingIterator(text.data(), position),
                            CountingIterator(text.data() + text.size(), position), &events);
  return tree.take_root();
}

void FaultList::add(int line, const std::string& key, const std::string& what)
{
  faults_.emplace_back(line, fmt::format("{}:{}: {}{}{}", name_, line, shown(key, 200), key.empty() ? "" : ": ",
                                         shown(what, longest_fault)));
}

void FaultList::add(int line, const InputError& fault)
{
  faults_.emplace_back(line, shown(fault.what(), longest_fault));
}

void FaultList::throw_if_any() const
{
  if (empty()) return;
  auto sorted = faults_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> lines;
  for (auto& fault : sorted) lines.push_back(std::move(fault.second));
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
                           is_empty_file ? "is empty" : kind_in_words(node.kind)));
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
  asked_.insert(key);
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
    add_fault(key, fmt::format("{}; write {}", kind_in_words(node->kind), expected));
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
  return read_scalar(presence, key, "a text", [](const DocumentNode& node) {
    if (!node.is_text) throw std::invalid_argument(fmt::format("{0} is not a text; write \"{0}\"", shown(node.scalar)));
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
  const std::string expected = count_in_words(lowest, highest);
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

std::optional<double> MappingReader::read_number(Presence presence, const std::string& key, double lowest)
{
  return read_scalar(presence, key, fmt::format("a number, {} or more", lowest), [&](const DocumentNode& node) {
    const std::string_view text = node.scalar;
    const std::string_view magnitude = text.substr(text.starts_with('-') ? 1 : 0);
    double number = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
    // from_chars also reads "inf" and "nan".
    const bool is_number = !magnitude.empty() && is_digit(magnitude.front()) && end == text.data() + text.size();
    if (!is_number || node.quoted) {
      throw std::invalid_argument(fmt::format("{} is not a number; write a number, {} or more{}", in_quotes(text),
                                              lowest, is_number ? ", without quotes" : ""));
    }
    if (status != std::errc{} || !std::isfinite(number) || number < lowest) {
      throw std::invalid_argument(
          fmt::format("{} is out of range; write a number, {} or more", in_quotes(text), lowest));
    }
    return number;
  });
}

double MappingReader::required_number(const std::string& key, double lowest)
{
  return read_number(Presence::Required, key, lowest).value_or(lowest);
}

std::optional<double> MappingReader::optional_number(const std::string& key, double lowest)
{
  const DocumentNode* node = optional(key);
  if (node && node->kind == DocumentNode::Kind::Null) return std::nullopt;
  return read_number(Presence::Optional, key, lowest);
}

std::optional<bool> MappingReader::optional_boolean(const std::string& key)
{
  return read_scalar(Presence::Optional, key, "true or false", [](const DocumentNode& node) {
    if (node.quoted || (node.scalar != "true" && node.scalar != "false")) {
      throw std::invalid_argument(fmt::format("{} is not a truth value; write true or false{}", in_quotes(node.scalar),
                                              node.quoted ? " without quotes" : ""));
    }
    return node.scalar == "true";
  });
}

std::optional<Bytes> MappingReader::read_bytes(Presence presence, const std::string& key)
{
  return read_scalar(presence, key, size_in_words, [](const auto& node) { return bytes_from_text(node.scalar); });
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
  return read_scalar(presence, key, work_in_words, [](const auto& node) { return flops_from_text(node.scalar); });
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
  const auto listed = fmt::format("one of {}", fmt::join(choices, ", "));
  return read_scalar(presence, key, listed, [&](const DocumentNode& node) {
    if (std::find(choices.begin(), choices.end(), node.scalar) == choices.end()) {
      const auto nearest = nearest_word(node.scalar, choices);
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
    add_fault(key, fmt::format("{}; write a list", kind_in_words(node->kind)));
    return none;
  }
  return node->items;
}

void MappingReader::refuse_unknown()
{
  std::vector<std::string> absent;
  for (const auto& key : asked_) {
    if (!has(key)) absent.push_back(key);
  }
  for (const auto& [key, node] : node_->members) {
    if (asked_.contains(key)) continue;
    const auto nearest = nearest_word(key, absent);
    faults_->add(node.line, path_of(key),
                 nearest.empty() ? fmt::format("unknown key; the keys here are {}", fmt::join(asked_, ", "))
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
