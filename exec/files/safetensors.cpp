#include "exec/files/safetensors.hpp"

#include "core/base/files.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "core/text/document.hpp"
#include "core/utf8.hpp"
#include "exec/files/crc32c.hpp"
#include "exec/files/durable_files.hpp"
#include "exec/files/open_file.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <tuple>
#include <utility>

namespace isobar::exec {

namespace {

constexpr std::size_t length_bytes = 8;  // width of the field with the header's length
constexpr auto metadata_name = "__metadata__";

/// The header's length from its little-endian field, on any machine.
std::uint64_t length_from(const std::array<std::byte, length_bytes>& bytes)
{
  std::uint64_t length = 0;
  for (std::size_t i = length_bytes; i-- > 0;) length = length << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return length;
}

std::array<char, length_bytes> bytes_of_length(std::uint64_t length)
{
  std::array<char, length_bytes> bytes{};
  for (auto& byte : bytes) {
    byte = static_cast<char>(length & 0xff);
    length >>= 8;
  }
  return bytes;
}

/// A tensor and its byte range after the header.
struct Entry {
  TensorFacts facts;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// A list of whole numbers below 2^53; adds a fault for anything else.
std::vector<std::uint64_t> counts_from(MappingReader& reader, const std::string& key)
{
  std::vector<std::uint64_t> counts;
  for (const auto& item : reader.required_sequence(key)) {
    std::uint64_t count = 0;
    const auto* end = item.scalar.data() + item.scalar.size();
    const auto [rest, status] = std::from_chars(item.scalar.data(), end, count);
    const bool is_number = item.kind == DocumentNode::Kind::Scalar && !item.quoted && !item.scalar.empty();
    if (!is_number || rest != end || status != std::errc{} || count > MappingReader::max_count) {
      reader.add_fault(
          key, fmt::format("{} is not a whole number from 0 to {}", in_quotes(item.scalar), MappingReader::max_count));
      break;
    }
    counts.push_back(count);
  }
  return counts;
}

Metadata metadata_from(const DocumentNode& node, FaultList& faults)
{
  Metadata metadata;
  MappingReader reader(node, std::string(metadata_name) + ".", faults);
  for (const auto& [key, value] : node.members) {
    if (value.kind == DocumentNode::Kind::Scalar && value.is_text) {
      metadata[key] = value.scalar;
    } else {
      reader.add_fault(key, "is not a text");
    }
  }
  return metadata;
}

/// The header's entry of one tensor, with every check that does not need the others.
Entry entry_from(const std::string& name, const DocumentNode& node, FaultList& faults)
{
  Entry entry;
  entry.facts.name = name;
  MappingReader reader(node, shown(name) + ".", faults);
  const auto type = element_type_from_name(reader.required_choice("dtype", element_type_names()));
  entry.facts.shape = counts_from(reader, "shape");
  if (const auto dimensions = entry.facts.shape.size(); dimensions > most_dimensions) {
    reader.add_fault("shape", fmt::format("has {} dimensions; at most {} are supported", dimensions, most_dimensions));
  }
  const auto places = counts_from(reader, "data_offsets");
  if (places.size() != 2) reader.add_fault("data_offsets", "is not a list of two whole numbers, begin and end");
  reader.refuse_unknown();
  faults.throw_if_any();
  entry.facts.type = type.value();
  entry.begin = places[0];
  entry.end = places[1];
  const auto bytes = entry.facts.bytes_if_countable();
  if (!bytes || entry.end < entry.begin || entry.end - entry.begin != *bytes) {
    reader.add_fault("data_offsets", fmt::format("{} to {} does not fit the {} bytes of {} {}", entry.begin, entry.end,
                                                 bytes ? fmt::to_string(*bytes) : "more than 2^63",
                                                 shape_in_words(entry.facts.shape), name_of(entry.facts.type)));
  }
  faults.throw_if_any();
  return entry;
}

/// Checks that each of the `size` bytes after the header belongs to exactly one tensor.
void check_places(const std::map<std::string, Entry>& entries, std::uint64_t size, const std::string& where)
{
  std::vector<const Entry*> in_order;
  in_order.reserve(entries.size());
  for (const auto& [name, entry] : entries) in_order.push_back(&entry);
  std::sort(in_order.begin(), in_order.end(),
            [](const Entry* a, const Entry* b) { return std::tie(a->begin, a->end) < std::tie(b->begin, b->end); });
  std::uint64_t end = 0;
  for (const Entry* entry : in_order) {
    if (entry->begin != end) {
      throw InputError(where, fmt::format("tensor {} begins at {}, but the previous one ends at {}; tensors neither "
                                          "overlap nor leave gaps",
                                          in_quotes(entry->facts.name), entry->begin, end));
    }
    end = entry->end;
  }
  if (end == size) return;
  throw InputError(where, fmt::format("its tensors take {} bytes, but the file has {}; {}", end, size,
                                      end > size ? "it is truncated" : "data was appended"));
}

std::string header_of(const std::vector<TensorFacts>& tensors, const Metadata& metadata)
{
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[metadata_name] = metadata;
  std::uint64_t end = 0;
  for (const auto& tensor : tensors) {
    const std::uint64_t begin = end;
    end += tensor.bytes();
    header[tensor.name] = {{"dtype", name_of(tensor.type)}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  auto text = header.dump();
  text.resize((text.size() + length_bytes - 1) / length_bytes * length_bytes, ' ');  // so that elements are aligned
  return text;
}

void check_names(const std::vector<TensorFacts>& tensors, const Metadata& metadata, const std::string& where)
{
  std::set<std::string_view> names;
  for (const auto& tensor : tensors) {
    const bool is_name = is_utf8(tensor.name) && tensor.name != metadata_name;
    if (!is_name) throw InputError(where, fmt::format("{} cannot name a tensor", in_quotes(tensor.name)));
    if (!names.insert(tensor.name).second) {
      throw InputError(where, fmt::format("two tensors are named {}", in_quotes(tensor.name)));
    }
  }
  for (const auto& [key, value] : metadata) {
    if (!is_utf8(key) || !is_utf8(value)) throw InputError(where, "metadata is not UTF-8");
  }
}

/// Appends to a file and computes the CRC of everything written.
class CheckedOutput {
 public:
  explicit CheckedOutput(TemporaryFile& file) : file_(&file) {}

  void write(std::span<const std::byte> bytes)
  {
    // Small enough that the piece is still in the processor's cache after the CRC, and that an interrupt does not wait
    // for gigabytes.
    constexpr std::size_t piece = std::size_t{1} << 22;
    while (!bytes.empty()) {
      throw_if_interrupted();
      const auto next = bytes.first(std::min(piece, bytes.size()));
      crc_ = crc32c(next, crc_);
      file_->write({reinterpret_cast<const char*>(next.data()), next.size()});
      bytes = bytes.subspan(next.size());
    }
  }
  std::uint32_t crc() const { return crc_; }

 private:
  TemporaryFile* file_;
  std::uint32_t crc_ = 0;
};

}  // namespace

struct SafetensorsFile::Content {
  explicit Content(const std::filesystem::path& path) : file(path)
  {
    std::array<std::byte, length_bytes> length_text{};
    const std::string& where = file.where();
    if (file.size() < length_bytes) {
      throw InputError(where,
                       fmt::format("has {} bytes; a safetensors file begins with the length of its header, in 8 bytes",
                                   file.size()));
    }
    file.read(0, length_text);
    const std::uint64_t length = length_from(length_text);
    if (length > longest_safetensors_header) {
      throw InputError(where, fmt::format("its header would have {} bytes; that of a safetensors file has at most {}",
                                          length, longest_safetensors_header));
    }
    if (length > file.size() - length_bytes) {
      throw InputError(where, fmt::format("its header has {} bytes, but the file has {}; it is truncated", length,
                                          file.size() - length_bytes));
    }
    std::string header(length, '\0');
    file.read(length_bytes, std::as_writable_bytes(std::span(header)));
    if (!header.starts_with('{'))
      throw InputError(where, "its header is not a JSON object; this is not a safetensors file");
    read_header(header);
    elements_begin = length_bytes + length;
    check_places(entries, file.size() - elements_begin, where);
  }

  /// Reads the header tensor by tensor: as a tree, the whole header would take many times its size.
  void read_header(const std::string& header)
  {
    constexpr std::size_t most_values = 100'000;  // a tensor has few, the metadata may have many
    FaultList faults(file.where());
    bool has_metadata = false;
    read_json_members(header, file.where(), most_values, [&](const DocumentNode::Member& member) {
      throw_if_interrupted();
      bool is_new = false;
      if (member.key == metadata_name) {
        metadata = metadata_from(member.value, faults);
        is_new = !std::exchange(has_metadata, true);
      } else {
        is_new = entries.emplace(member.key, entry_from(member.key, member.value, faults)).second;
      }
      if (!is_new) faults.add(member.value.line, shown(member.key), "given twice; remove one");
      faults.throw_if_any();
    });
  }

  OpenFile file;
  Metadata metadata;
  std::map<std::string, Entry> entries;
  std::uint64_t elements_begin = 0;
};

SafetensorsFile::SafetensorsFile(const std::filesystem::path& file) : content_(std::make_unique<const Content>(file)) {}
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

std::string SafetensorsFile::where() const
{
  return content_->file.where();
}

std::vector<std::string> SafetensorsFile::names() const
{
  std::vector<std::string> names;
  for (const auto& [name, entry] : content_->entries) names.push_back(name);
  return names;
}

const TensorFacts* SafetensorsFile::find(const std::string& name) const
{
  const auto found = content_->entries.find(name);
  return found == content_->entries.end() ? nullptr : &found->second.facts;
}

void SafetensorsFile::read(const std::string& name, std::span<std::byte> into) const
{
  ensure(into.size() == facts(name).bytes(), "a tensor is read as a whole");
  read_begin(name, into);
}

void SafetensorsFile::read_begin(const std::string& name, std::span<std::byte> into) const
{
  ensure(into.size() <= facts(name).bytes(), "a tensor has at least the bytes that are read");
  content_->file.read(content_->elements_begin + content_->entries.at(name).begin, into);
}

const Metadata& SafetensorsFile::metadata() const
{
  return content_->metadata;
}

std::uint64_t SafetensorsFile::size() const
{
  return content_->file.size();
}

WrittenSafetensors write_safetensors(const std::filesystem::path& file, std::vector<TensorFacts> tensors,
                                     const Metadata& metadata, const GiveElements& elements_of)
{
  check_names(tensors, metadata, shown_path(file));
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.type != b.type ? a.type > b.type : a.name < b.name; });
  const auto header = header_of(tensors, metadata);
  if (header.size() > longest_safetensors_header) {
    throw InputError(shown_path(file), fmt::format("its header would have {} bytes; readers accept at most {}",
                                                   header.size(), longest_safetensors_header));
  }
  WrittenSafetensors written;
  written.size = length_bytes + header.size();
  for (const auto& tensor : tensors) written.size += tensor.bytes();
  try {
    TemporaryFile temporary(file);
    CheckedOutput output(temporary);
    const auto length = bytes_of_length(header.size());
    output.write(std::as_bytes(std::span(length)));
    output.write(std::as_bytes(std::span(header)));
    for (const auto& tensor : tensors) {
      const auto elements = elements_of(tensor);
      ensure(elements.size() == tensor.bytes(), "a tensor has as many bytes as its shape says");
      written.tensor_crc[tensor.name] = crc32c(elements);
      output.write(elements);
    }
    temporary.keep();
    synchronise_folder(folder_of_file(file));
    written.crc = output.crc();
  } catch (const EnvironmentError& fault) {
    throw EnvironmentError(fmt::format("{}; the file takes {} bytes", fault.what(), written.size));
  }
  return written;
}

WrittenSafetensors write_safetensors(const std::filesystem::path& file, std::span<const TensorView> tensors,
                                     const Metadata& metadata)
{
  std::vector<TensorFacts> facts;
  std::map<std::string_view, std::span<const std::byte>> elements;
  for (const auto& tensor : tensors) {
    facts.push_back(tensor.facts);
    elements[tensor.facts.name] = tensor.data;
  }
  return write_safetensors(file, std::move(facts), metadata,
                           [&](const TensorFacts& tensor) { return elements.at(tensor.name); });
}

}  // namespace isobar::exec
