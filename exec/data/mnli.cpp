#include "exec/data/mnli.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/names.hpp"
#include "core/text/document.hpp"
#include "core/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace isobar::exec {

namespace {

constexpr NameTable<std::int64_t, mnli_classes> labels{{{0, "entailment"}, {1, "neutral"}, {2, "contradiction"}}};
constexpr std::string_view no_label = "-";
/// Limits the report on a file of half a million lines.
constexpr int most_faults = 20;

std::vector<std::string_view> columns_of(std::string_view line)
{
  std::vector<std::string_view> columns;
  while (true) {
    columns.push_back(line.substr(0, line.find('\t')));
    if (columns.back().size() == line.size()) return columns;
    line.remove_prefix(columns.back().size() + 1);
  }
}

/// Removes the first line from `text` and returns it without its line end.
std::string_view take_line(std::string_view& text)
{
  std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

/// Positions of the needed columns in a line.
struct Columns {
  Columns(std::string_view header, FaultList& faults)
  {
    if (header.starts_with(byte_order_mark)) {
      faults.add(1, "", "begins with a byte order mark; save it in UTF-8 without one");
      header.remove_prefix(byte_order_mark.size());
    }
    const auto names = columns_of(header);
    count = names.size();
    const auto place_of = [&](std::string_view name) {
      const auto found = std::find(names.begin(), names.end(), name);
      if (found == names.end()) faults.add(1, "", fmt::format("has no column {}; MNLI's first line names it", name));
      if (std::count(found, names.end(), name) > 1) {
        faults.add(1, "", fmt::format("names column {} twice; name each once", name));
      }
      return static_cast<std::size_t>(found - names.begin());
    };
    premise = place_of("sentence1");
    hypothesis = place_of("sentence2");
    label = place_of("gold_label");
  }

  std::size_t count = 0;
  std::size_t premise = 0, hypothesis = 0, label = 0;
};

}  // namespace

MnliFile::MnliFile(const std::filesystem::path& file) : text_(read_file(file))
{
  FaultList faults(file.string());
  std::string_view rest = text_;
  const Columns columns(take_line(rest), faults);
  faults.throw_if_any();

  int number_of_faults = 0;
  for (int line = 2; !rest.empty() && number_of_faults < most_faults; ++line) {
    const std::string_view content = take_line(rest);
    const auto values = columns_of(content);
    const auto refuse = [&](const std::string& what) {
      faults.add(line, "", what);
      ++number_of_faults;
    };
    if (!is_utf8(content)) {
      refuse("has bytes that are not UTF-8");
    } else if (values.size() != columns.count) {
      refuse(fmt::format("has {} columns; the first line has {}", values.size(), columns.count));
    } else if (values[columns.label] == no_label) {
      ++unlabelled_;
    } else if (const auto label = value_in(labels, values[columns.label]); !label) {
      refuse(fmt::format("gold_label: {}; write {} or -", in_quotes(values[columns.label]),
                         fmt::join(names_in(labels), ", ")));
    } else {
      pairs_.push_back({place_of(values[columns.premise]), place_of(values[columns.hypothesis]), *label});
    }
  }
  faults.throw_if_any();
  if (pairs_.empty()) throw InputError(file.string(), "has no pair with a label");
}

MnliFile::Place MnliFile::place_of(std::string_view column) const
{
  return {static_cast<std::uint64_t>(column.data() - text_.data()), column.size()};
}

SentencePair MnliFile::pair(std::uint64_t index) const
{
  const auto& pair = pairs_.at(index);
  const std::string_view text = text_;
  return {text.substr(pair.premise.begin, pair.premise.length),
          text.substr(pair.hypothesis.begin, pair.hypothesis.length), pair.label};
}

}  // namespace isobar::exec
