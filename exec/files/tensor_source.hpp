#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Tensors as they lie in files: named, typed, their elements little-endian, row by row. No LibTorch here.
namespace isobar::exec {

/// What the elements of a stored tensor are: safetensors' dtypes of whole bytes, in the order of its reference.
enum class ElementType { Bool, U8, I8, F8E5M2, F8E4M3, I16, U16, F16, BF16, I32, U32, F32, F64, I64, U64 };

/// As files write it, such as "BF16".
std::string_view name_of(ElementType type);
/// Bytes of one element.
std::uint64_t size_of(ElementType type);
std::optional<ElementType> element_type_from_name(std::string_view name);
std::vector<std::string> element_type_names();

/// What is known of a tensor without its elements. A shape without dimensions is one element.
struct TensorFacts {
  std::string name;
  ElementType type = ElementType::F32;
  std::vector<std::uint64_t> shape;

  /// Bytes of its elements. @throws InputError naming the tensor when they are more than 2^63.
  std::uint64_t bytes() const;
  /// The same; none when they are more.
  std::optional<std::uint64_t> bytes_if_countable() const;
};

/// A tensor whose elements somebody else keeps, as many bytes as `facts.bytes()`.
struct TensorView {
  TensorFacts facts;
  std::span<const std::byte> data;
};

/// A tensor with its elements.
struct StoredTensor {
  TensorFacts facts;
  std::vector<std::byte> data;
};

/// "[2, 3]".
std::string shape_in_words(const std::vector<std::uint64_t>& shape);

/// Something that holds tensors by name: a safetensors file, a folder of them, a checkpoint. Reads from any thread.
class TensorSource {
 public:
  TensorSource() = default;
  TensorSource(const TensorSource&) = delete;
  TensorSource& operator=(const TensorSource&) = delete;
  TensorSource(TensorSource&&) = default;
  TensorSource& operator=(TensorSource&&) = default;
  virtual ~TensorSource() = default;

  /// What messages call it.
  virtual std::string where() const = 0;
  /// In the order of the alphabet.
  virtual std::vector<std::string> names() const = 0;
  /// Null when there is no such tensor; valid as long as the source.
  virtual const TensorFacts* find(const std::string& name) const = 0;
  /// Reads one tensor's elements, and no other's, into `into`, of exactly its bytes.
  /// @throws InputError when it is damaged or there is no such tensor, EnvironmentError when the disk refuses.
  virtual void read(const std::string& name, std::span<std::byte> into) const = 0;

  /// The facts. @throws InputError when there is no such tensor.
  const TensorFacts& facts(const std::string& name) const;
  StoredTensor read(const std::string& name) const;
};

}  // namespace isobar::exec
