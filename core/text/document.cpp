#include "core/text/document.hpp"

#include "core/text/json_number.hpp"
#include "core/utf8.hpp"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <iterator>
#include <sstream>
#include <utility>

namespace isobar {

namespace {

/// Builds the nodes of a file from the events of either parser, and refuses what both parsers let through.
class TreeBuilder {
 public:
  using TakeMember = std::function<void(const DocumentNode::Member&)>;

  explicit TreeBuilder(const std::string& name) : name_(name) { root_.line = 1; }
  /// Passes the members of the root on instead of keeping them.
  TreeBuilder(const std::string& name, std::size_t most_values, const TakeMember& take) : TreeBuilder(name)
  {
    most_values_ = most_values;
    take_ = &take;
  }

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
    if (take_ != nullptr && open_.empty() && kind != DocumentNode::Kind::Mapping) fail(line, "is not a mapping");
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
    if (take_ != nullptr && open_.size() > 1 && ++values_ > most_values_) {
      const std::string& key = open_.front().node.members.back().key;
      fail(node.line, fmt::format("{}: has more than {} values", shown(key), most_values_));
    }
    if (open_.empty()) {
      root_ = std::move(node);
    } else if (is_mapping()) {
      auto& members = open_.back().node.members;
      auto& member = members.back().value;
      node.line = member.line;
      member = std::move(node);
      open_.back().has_key = false;
      if (take_ != nullptr && open_.size() == 1) {
        (*take_)(members.back());
        members.clear();
        values_ = 0;
      }
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
  const TakeMember* take_ = nullptr;
  std::size_t most_values_ = 0;
  std::size_t values_ = 0;  // within the root's last member
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

  /// yaml-cpp accepts the end of the file as the end of a quoted text. An open one can only be the last.
  void refuse_open_quotes() const
  {
    if (last_quoted_.is_null()) return;
    auto at = static_cast<std::size_t>(last_quoted_.pos);
    const char quote = text_.at(at);
    if (quote != '"' && quote != '\'') return;  // a block of text, > or |, which yaml-cpp tags as it does quoted ones
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
    if (tree_.expects_key()) tree_.fail(line_of(mark), "a list or mapping as a key; a key is a string");
    tree_.open(kind, line_of(mark));
  }

  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) const
  {
    if (anchor != 0) tree_.fail(line_of(mark), "an anchor (&); write the value where it is needed");
  }

  /// "?" is yaml-cpp's tag of a value without one.
  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const
  {
    if (!tag.empty() && tag != "?") {
      tree_.fail(line_of(mark), fmt::format("a tag ({}); write the value without it", shown(tag)));
    }
  }

  const std::string& text_;
  TreeBuilder& tree_;
  bool begun_ = false;
  YAML::Mark last_quoted_ = YAML::Mark::null_mark();
};

/// How far the JSON parser has read.
struct JsonPosition {
  int line = 1;  ///< of the last character read
  char last = 0;
  std::size_t characters = 0;  ///< that were read
};

/// Characters for the JSON parser, which reads each once. It reports a value once it has read the value's last
/// character, or one more after a number. A line break belongs to the line that it ends, so `line` is the value's in
/// either case.
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
    ++position_->characters;
    return *this;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) { return a.at_ == b.at_; }

 private:
  const char* at_;
  JsonPosition* position_;
};

class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonEvents(const std::string& text, TreeBuilder& tree, const JsonPosition& position)
      : text_(text), tree_(tree), position_(position)
  {
  }

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
    const auto number_fault = fault_of_json_number(text_, std::max<std::size_t>(position_.characters, 1) - 1);
    if (!number_fault.empty()) tree_.fail(position_.line, number_fault);
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error …; last read: '…'"
    std::string what = fault.what();
    if (const auto begin = what.find("column "); begin != std::string::npos) what.erase(0, what.find(": ", begin) + 2);
    what = what.substr(what.starts_with('[') ? what.find("] ") + 2 : 0);
    tree_.fail(position_.line, "not JSON: " + shown(what.substr(0, what.find("; last read")), 200));
  }

 private:
  bool plain(const std::string& text) { return tree_.scalar(position_.line, text, false, false), true; }

  const std::string& text_;
  TreeBuilder& tree_;
  const JsonPosition& position_;
};

/// yaml-cpp takes byte 4 for the end of the file and does not check the encoding.
void refuse_non_text(const std::string& text, const TreeBuilder& tree)
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

}  // namespace

DocumentNode parse_yaml(const std::string& file, const std::string& name)
{
  const std::string text = file.substr(file.starts_with(byte_order_mark) ? byte_order_mark.size() : 0);
  TreeBuilder tree(name);
  refuse_non_text(text, tree);
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

namespace {

void read_json(const std::string& text, TreeBuilder& tree)
{
  // nlohmann takes NUL for the end of the file.
  if (const auto nul = text.find('\0'); nul != std::string::npos) {
    const auto lines_before = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(nul), '\n');
    tree.fail(1 + static_cast<int>(lines_before), "not JSON: the control character \\x00; write text in UTF-8");
  }
  JsonPosition position;
  JsonEvents events(text, tree, position);
  nlohmann::json::sax_parse(CountingIterator(text.data(), position),
                            CountingIterator(text.data() + text.size(), position), &events);
}

}  // namespace

DocumentNode parse_json(const std::string& text, const std::string& name)
{
  TreeBuilder tree(name);
  read_json(text, tree);
  return tree.take_root();
}

void read_json_members(const std::string& text, const std::string& name, std::size_t most_values,
                       const std::function<void(const DocumentNode::Member&)>& take)
{
  TreeBuilder tree(name, most_values, take);
  read_json(text, tree);
  const auto root = tree.take_root();
  if (root.kind != DocumentNode::Kind::Mapping) tree.fail(root.line, "is not a mapping");
}

}  // namespace isobar
