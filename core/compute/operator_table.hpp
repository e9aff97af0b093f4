#pragma once

#include "core/model/dtype.hpp"
#include "core/units.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::compute {

/// Which operand of a product is transposed in memory, as cuBLAS names it.
enum class ProductLayout {
  TN,  ///< forward
  NN,  ///< gradient of the input
  NT   ///< gradient of the parameters
};
/// "TN", "NN", "NT".
std::string_view name_of(ProductLayout layout);

/// `batch` products of an m x k and a k x n matrix.
struct Product {
  std::uint64_t batch = 1;
  std::uint64_t m = 1;
  std::uint64_t n = 1;
  std::uint64_t k = 1;
  ProductLayout layout = ProductLayout::TN;

  Flops work() const;
};
struct MeasuredProduct {
  Product product;
  Seconds time;
};
/// Causal attention in one kernel, of `batch` samples of `sequence` tokens and `heads` heads of `width` numbers.
struct MeasuredAttention {
  std::uint64_t batch = 1;
  std::uint64_t heads = 1;
  std::uint64_t sequence = 1;
  std::uint64_t width = 1;
  Seconds forward;
  Seconds backward;
};

/// Memory-bound operators of transformers.
enum class BoundOperator {
  Norm,        ///< of each element of a layer's input
  Activation,  ///< of each element between the two products of a feed-forward network
  Residual,    ///< bias, dropout where there is one, and addition, of each element of a layer's output
  Softmax,     ///< of each score of unfused attention, with its mask and dropout
  Copy         ///< any other
};
/// "norm", "activation", "residual", "softmax", "copy".
std::string_view name_of(BoundOperator which);

/// Bandwidth that an operator reaches: the least bytes that it must move, over its time.
struct MeasuredBandwidth {
  BytesPerSecond forward;
  BytesPerSecond backward;
};

/// Operators measured on one type of device: schema isobar-operators/1 (docs/formats/operators.md).
struct OperatorTable {
  std::string device;  ///< its type, as in Device::type
  DType dtype = DType::Float32;
  bool tf32 = false;                      ///< products of float32 numbers round them to TF32
  Bytes memory;                           ///< of the device
  std::vector<MeasuredProduct> products;  ///< at least one
  std::map<BoundOperator, MeasuredBandwidth> memory_bound = {};
  std::vector<MeasuredAttention> attention = {};
  std::optional<Seconds> launch = {};  ///< host time of an operator in eager mode

  /// Time of a product. A measured shape takes its time; others take the rate of the nearest ones: a mean in logarithms
  /// of the four nearest, weighted by the inverse square of the distance in logarithms of batch, m, n and k. Products
  /// of other layouts count only where the table has none of this one. O(products). Requires a product in the table.
  Seconds time_of(const Product& product) const;
};

/// The text of a table: JSON.
std::string operator_table_to_json(const OperatorTable& table);
/// Parses a table; `name` stands for the file in messages. @throws InputError naming file, line and key of every fault.
OperatorTable operator_table_from_json(const std::string& text, const std::string& name);
/// True if a text names the schema of tables, and so is one or wants to be.
bool is_operator_table(const std::string& text);

}  // namespace isobar::compute
