#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::exec {

/// Some elements of a tensor, counted in row-major order: begin..end-1 of each `period` of them. So the part is a range
/// of the tensor, if the period has all its elements; some of its columns, if the period is a row; and some rows of
/// each of several blocks.
struct TensorPart {
  std::vector<std::uint64_t> shape;  ///< of the whole tensor
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t period = 0;  ///< divides the number of elements

  /// The tensor itself.
  static TensorPart whole(std::vector<std::uint64_t> shape);
  /// Elements begin..end-1.
  static TensorPart range(std::uint64_t begin, std::uint64_t end, std::vector<std::uint64_t> shape);

  bool is_whole() const { return begin == 0 && end == period; }
  std::uint64_t elements() const;
  bool operator==(const TensorPart&) const = default;
};

/// The name under which files store a part of a tensor, with one dimension: "layers.3.up.weight[0:512 of 32x64]" is a
/// range, "layers.3.down.weight[0:16:64 of 32x64]" the first 16 columns. The tensor itself keeps its name. A part of a
/// part has two such endings.
std::string part_name(std::string_view tensor, const TensorPart& part);

struct NamedPart {
  std::string tensor;
  TensorPart part;
};
/// None for a name of a whole tensor, and for an ending that no part of a tensor can have.
std::optional<NamedPart> tensor_part_in_name(std::string_view name);

}  // namespace isobar::exec
