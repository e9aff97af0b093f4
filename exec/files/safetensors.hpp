#pragma once

#include "exec/files/tensor_source.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

/// Files in the format of Hugging Face's safetensors: the length of a header, a JSON header, raw elements.
/// Source: the format's description and reference reader, github.com/huggingface/safetensors, README and tensor.rs.
namespace isobar::exec {

/// The text members of a header's __metadata__.
using Metadata = std::map<std::string, std::string>;

/// A header is at most so long, as the reference has it.
inline constexpr std::uint64_t longest_safetensors_header = 100'000'000;
/// Dimensions of a tensor; NumPy's has as many at most.
inline constexpr std::size_t most_dimensions = 64;

/// One file, open for reading. The header is checked as a whole when it is opened: tensors cover what follows it
/// without holes or overlaps, and nothing is behind them. Tensors are read from their offsets, not mapped: a file that
/// is cut while it is in use is an error then, and no SIGBUS.
class SafetensorsFile final : public TensorSource {
 public:
  /// @throws InputError naming the file, and the tensor where it is one's fault; EnvironmentError when the disk
  /// refuses.
  explicit SafetensorsFile(const std::filesystem::path& file);
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile() override;

  std::string where() const override;
  std::vector<std::string> names() const override;
  const TensorFacts* find(const std::string& name) const override;
  void read(const std::string& name, std::span<std::byte> into) const override;
  using TensorSource::read;
  /// Reads the first bytes of a tensor's elements, as many as there is room for.
  void read_begin(const std::string& name, std::span<std::byte> into) const;

  const Metadata& metadata() const;
  /// Bytes of the whole file when it was opened.
  std::uint64_t size() const;

 private:
  struct Content;
  std::unique_ptr<const Content> content_;
};

/// What was written: the file's bytes, its CRC-32C, and each tensor's.
struct WrittenSafetensors {
  std::uint64_t size = 0;
  std::uint32_t crc = 0;
  std::map<std::string, std::uint32_t> tensor_crc;
};

/// Gives a tensor's elements, which stay until the next call.
using GiveElements = std::function<std::span<const std::byte>(const TensorFacts&)>;

/// Writes a file, or replaces one, all or nothing, and durably: file and folder are synchronised. Tensors stand in the
/// order of the reference writer (wide elements first, then by name) and are asked for one by one in it, so that no two
/// need be in memory. Deterministic.
/// @throws InputError when two tensors have one name or one is called __metadata__ or is no UTF-8; EnvironmentError
/// naming the file and its bytes when the disk refuses, which leaves nothing behind.
WrittenSafetensors write_safetensors(const std::filesystem::path& file, std::vector<TensorFacts> tensors,
                                     const Metadata& metadata, const GiveElements& elements_of);
WrittenSafetensors write_safetensors(const std::filesystem::path& file, std::span<const TensorView> tensors,
                                     const Metadata& metadata);

}  // namespace isobar::exec
