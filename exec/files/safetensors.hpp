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

/// Files in Hugging Face's safetensors format: the header's length, a JSON header, raw elements.
/// Source: the description and reference reader, github.com/huggingface/safetensors, README and tensor.rs.
namespace isobar::exec {

/// The members of a header's __metadata__, all of them text.
using Metadata = std::map<std::string, std::string>;

/// Largest header in bytes, as in the reference reader.
inline constexpr std::uint64_t longest_safetensors_header = 100'000'000;
/// Largest number of dimensions of a tensor, as in NumPy.
inline constexpr std::size_t most_dimensions = 64;

/// One file, open for reading. Opening it checks the whole header: tensors cover the rest of the file without gaps or
/// overlaps. Tensors are read by offset, not mapped, so that a file truncated while in use is an error and no SIGBUS.
class SafetensorsFile final : public TensorSource {
 public:
  /// @throws InputError naming the file, and the tensor at fault if any; EnvironmentError when reading fails.
  explicit SafetensorsFile(const std::filesystem::path& file);
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile() override;

  std::string where() const override;
  std::vector<std::string> names() const override;
  const TensorFacts* find(const std::string& name) const override;
  void read(const std::string& name, std::span<std::byte> into) const override;
  using TensorSource::read;
  /// Reads the first into.size() bytes of a tensor's elements.
  void read_begin(const std::string& name, std::span<std::byte> into) const;

  const Metadata& metadata() const;
  /// Size of the whole file in bytes when it was opened.
  std::uint64_t size() const;

 private:
  struct Content;
  std::unique_ptr<const Content> content_;
};

/// Size in bytes and CRC-32C of a written file, and the CRC-32C of each tensor.
struct WrittenSafetensors {
  std::uint64_t size = 0;
  std::uint32_t crc = 0;
  std::map<std::string, std::uint32_t> tensor_crc;
};

/// Returns a tensor's elements; they must stay valid until the next call.
using GiveElements = std::function<std::span<const std::byte>(const TensorFacts&)>;

/// Writes or replaces a file atomically and durably: file and folder are synchronised. Tensors are written in the order
/// of the reference writer (wide elements first, then by name). `elements_of` is called for one at a time in that
/// order, so that only one need be in memory. Deterministic.
/// @throws InputError for a name that two tensors share, that is not UTF-8 or that is __metadata__; EnvironmentError
/// naming the file and its size when a write fails; then no part of the file remains.
WrittenSafetensors write_safetensors(const std::filesystem::path& file, std::vector<TensorFacts> tensors,
                                     const Metadata& metadata, const GiveElements& elements_of);
WrittenSafetensors write_safetensors(const std::filesystem::path& file, std::span<const TensorView> tensors,
                                     const Metadata& metadata);

}  // namespace isobar::exec
