#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Tensors as files store them: named, typed, with little-endian elements in row-major order. Without LibTorch.
namespace isobar::exec {

/// Types of stored elements: safetensors' dtypes of whole bytes, in the order of its reference implementation.
enum class ElementType { Bool, U8, I8, F8E5M2, F8E4M3, I16, U16, F16, BF16, I32, U32, F32, F64, I64, U64 };

/// Name in files, such as "BF16".
std::string_view name_of(ElementType type);
/// Bytes of one element.
std::uint64_t size_of(ElementType type);
std::optional<ElementType> element_type_from_name(std::string_view name);
std::vector<std::string> element_type_names();

/// A tensor without its elements. A shape without dimensions means one element.
struct TensorFacts {
  std::string name;
  ElementType type = ElementType::F32;
  std::vector<std::uint64_t> shape;

  /// Size of the elements in bytes. @throws InputError naming the tensor when it is over 2^63.
  std::uint64_t bytes() const;
  /// The same, or none when it is over 2^63.
  std::optional<std::uint64_t> bytes_if_countable() const;
};

/// A tensor whose elements are owned elsewhere. `data` has `facts.bytes()` bytes.
struct TensorView {
  TensorFacts facts;
  std::span<const std::byte> data;
};

/// A tensor with its elements.
struct StoredTensor {
  TensorFacts facts;
  std::vector<std::byte> data;
};

/// A shape as text: "[2, 3]".
std::string shape_in_words(const std::vector<std::uint64_t>& shape);

/// Tensors by name: a safetensors file, a folder of them, or a checkpoint. May be read from any thread.
class TensorSource {
 public:
  TensorSource() = default;
  TensorSource(const TensorSource&) = delete;
  TensorSource& operator=(const TensorSource&) = delete;
  TensorSource(TensorSource&&) = default;
  TensorSource& operator=(TensorSource&&) = default;
  virtual ~TensorSource() = default;

  /// The source's name in messages.
  virtual std::string where() const = 0;
  /// Names of all tensors, sorted.
  virtual std::vector<std::string> names() const = 0;
  /// The tensor's facts; null when it does not exist. Valid as long as the source.
  virtual const TensorFacts* find(const std::string& name) const = 0;
  /// Reads one tensor's elements into `into`, whose size must be the tensor's. Reads nothing else of the file.
  /// @throws InputError when the tensor is damaged or does not exist, EnvironmentError when reading fails.
  virtual void read(const std::string& name, std::span<std::byte> into) const = 0;

  /// The tensor's facts. @throws InputError when it does not exist.
  const TensorFacts& facts(const std::string& name) const;
  StoredTensor read(const std::string& name) const;
};

}  // namespace isobar::exec
