#include "exec/device/operator_times.hpp"

#include "core/base/clock.hpp"
#include "core/base/interrupt.hpp"
#include "core/compute/layer_time.hpp"
#include "core/compute/transformer.hpp"
#include "core/model/framework.hpp"
#include "exec/device/device.hpp"
#include "exec/device/memory_meter.hpp"
#include "exec/device/stream.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace isobar::exec {

namespace {

using compute::BoundOperator;
using compute::MeasuredAttention;
using compute::OperatorTable;
using compute::Product;
using compute::ProductLayout;

constexpr std::size_t warm_up = 2;
constexpr std::size_t fewest = 3;  // passes that count

constexpr std::uint64_t grid[] = {64, 256, 1024, 4096, 16384};
constexpr std::uint64_t sequences[] = {256, 1024, 4096, 16384};
constexpr std::uint64_t shard_counts[] = {1, 2, 4, 8};
constexpr ProductLayout layouts[] = {ProductLayout::TN, ProductLayout::NN, ProductLayout::NT};
constexpr BoundOperator bound_operators[] = {BoundOperator::Norm, BoundOperator::Activation, BoundOperator::Residual,
                                             BoundOperator::Softmax, BoundOperator::Copy};

at::ScalarType torch_type(DType dtype)
{
  if (dtype == DType::Float32) return at::kFloat;
  return dtype == DType::BFloat16 ? at::kBFloat16 : at::kHalf;
}

std::int64_t extent(std::uint64_t count)
{
  return static_cast<std::int64_t>(count);
}

Seconds median(std::vector<Seconds> times)
{
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

/// For its lifetime, products of float32 numbers round them to TF32.
class RoundedProducts {
 public:
  RoundedProducts() { at::globalContext().setFloat32MatmulPrecision("high"); }
  RoundedProducts(const RoundedProducts&) = delete;
  RoundedProducts& operator=(const RoundedProducts&) = delete;
  ~RoundedProducts() { at::globalContext().setFloat32MatmulPrecision("highest"); }
};

Seconds longest_pass(const OperatorTiming& timing)
{
  return timing.longest / static_cast<double>(warm_up + fewest);
}

struct PassTimes {
  Seconds forward;
  Seconds backward;
};

/// Times operators on a device, with random data of one type.
class Timer {
 public:
  Timer(const OperatorTiming& timing, DType dtype)
      : timing_(timing),
        meter_(Bytes(0)),
        stream_(timing.device, Stream::Kind::Computations, meter_),
        scope_(stream_),
        options_(at::TensorOptions(at::Device(timing.device)).dtype(torch_type(dtype))),
        generator_(at::globalContext().defaultGenerator(at::Device(timing.device)).clone())
  {
    generator_.set_current_seed(timing.seed);
    constexpr std::int64_t size = std::int64_t{1} << 26U;
    if (is_on_gpu()) blocked_ = at::empty({size}, options_.dtype(at::kByte));
  }

  bool is_on_gpu() const { return stream_.is_on_gpu(); }

  at::Tensor random(at::IntArrayRef shape) { return at::randn(shape, generator_, options_); }
  at::Tensor random_input(at::IntArrayRef shape) { return random(shape).requires_grad_(); }

  /// Medians of an operator and of its gradients with respect to `inputs`, if there are any.
  PassTimes time(const std::function<at::Tensor()>& forward, const Tensors& inputs = {})
  {
    const at::AutoGradMode graph(!inputs.empty());
    const auto pass = [&] {
      throw_if_interrupted();
      Pass events;
      events.begin = record();
      const at::Tensor output = forward();
      events.middle = record();
      if (inputs.empty()) return events;
      if (!gradient_.defined() || gradient_.sizes() != output.sizes()) gradient_ = random(output.sizes());
      events.backward_begin = record();
      torch::autograd::grad({output}, inputs, {gradient_});
      events.end = record();
      return events;
    };
    Seconds expected;
    for (std::size_t i = 0; i < warm_up; ++i) {
      const Pass events = pass();
      expected = events.forward() + events.backward();
    }
    const auto affordable = static_cast<std::size_t>(
        std::min(timing_.longest / std::max(expected, Seconds(1e-9)), static_cast<double>(timing_.repetitions)));
    const std::size_t passes = std::max(affordable, std::min(fewest, timing_.repetitions));
    // The device begins when the host has queued passes, so that it does not wait for the host between short ones.
    block_device();
    std::vector<Pass> measured;
    for (std::size_t i = 0; i < passes; ++i) measured.push_back(pass());
    gradient_.reset();
    std::vector<Seconds> forwards;
    std::vector<Seconds> backwards;
    for (const auto& events : measured) {
      forwards.push_back(events.forward());
      backwards.push_back(events.backward());
    }
    return {median(std::move(forwards)), median(std::move(backwards))};
  }

  /// Median of the time in which this thread issues the operator.
  Seconds host_time(const std::function<at::Tensor()>& forward)
  {
    constexpr std::size_t calls = 100;  // far fewer than a GPU's queue takes
    const at::NoGradGuard no_graph;
    std::vector<Seconds> times;
    for (std::size_t i = 0; i < warm_up + timing_.repetitions; ++i) {
      throw_if_interrupted();
      const Seconds begin = thread_time();
      for (std::size_t call = 0; call < calls; ++call) forward();
      if (i >= warm_up) times.push_back((thread_time() - begin) / static_cast<double>(calls));
      stream_.record().wait();
    }
    return median(std::move(times));
  }

 private:
  struct Pass {
    Event begin, middle, backward_begin, end;

    Seconds forward() const { return middle.time() - begin.time(); }
    Seconds backward() const { return end.time() - backward_begin.time(); }
  };

  Event record() { return is_on_gpu() ? stream_.record() : Event(thread_time()); }

  /// Gives a GPU work of some milliseconds.
  void block_device()
  {
    if (!is_on_gpu()) return;
    constexpr double slowdown = 100;
    stream_.begin_slow_work();
    blocked_.zero_();
    stream_.end_slow_work(slowdown);
  }

  const OperatorTiming& timing_;
  MemoryMeter meter_;
  Stream stream_;
  Stream::Scope scope_;
  at::TensorOptions options_;
  at::Generator generator_;
  at::Tensor blocked_;
  at::Tensor gradient_;
};

/// The product of a linear layer on one of the shards.
Product product_of(const compute::TransformerLayer::Linear& linear, std::uint64_t shards, ProductLayout layout)
{
  const auto whole = [](double count) { return static_cast<std::uint64_t>(std::max(1.0, std::round(count))); };
  const auto divided = static_cast<double>(linear.is_divided ? shards : 1);
  const std::uint64_t rows = whole(linear.rows);
  const std::uint64_t outputs = whole(linear.outputs / (linear.divides_inputs ? 1 : divided));
  const std::uint64_t inputs = whole(linear.inputs / (linear.divides_inputs ? divided : 1));
  switch (layout) {
    case ProductLayout::NN:
      return {1, rows, inputs, outputs, layout};
    case ProductLayout::NT:
      return {1, outputs, inputs, rows, layout};
    case ProductLayout::TN:
      break;
  }
  return {1, rows, outputs, inputs, layout};
}

compute::TransformerLayer operators_of(const Workload& workload, std::size_t layer, std::uint64_t shards)
{
  const auto framework = workload.framework.empty() ? Framework{} : framework_of(workload);
  return compute::transformer_layer(workload, layer, shards, framework);
}

/// The grid and the workload's own products, by rising work.
std::vector<Product> products_to_time(const Workload& workload)
{
  std::vector<Product> products;
  for (const auto layout : layouts) {
    for (const auto m : grid) {
      for (const auto n : grid) {
        for (const auto k : grid) products.push_back({1, m, n, k, layout});
      }
    }
    for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
      for (const auto shards : shard_counts) {
        for (const auto& linear : operators_of(workload, layer, shards).linears) {
          products.push_back(product_of(linear, shards, layout));
        }
      }
    }
  }
  const auto key = [](const Product& product) {
    return std::tuple(product.work(), product.layout, product.m, product.n, product.k);
  };
  std::sort(products.begin(), products.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  const auto same = [&](const auto& a, const auto& b) { return key(a) == key(b); };
  products.erase(std::unique(products.begin(), products.end(), same), products.end());
  return products;
}

Seconds time_of(const Product& product, Timer& timer, bool sums_in_float)
{
  const auto matrix = [&](std::uint64_t rows, std::uint64_t columns) {
    return timer.random({extent(rows), extent(columns)});
  };
  // A transposed operand of cuBLAS, whose matrices are stored by columns, is one of rows that are not.
  const at::Tensor left =
      product.layout == ProductLayout::NT ? matrix(product.k, product.m).t() : matrix(product.m, product.k);
  const at::Tensor right =
      product.layout == ProductLayout::TN ? matrix(product.n, product.k).t() : matrix(product.k, product.n);
  if (product.layout == ProductLayout::NT && sums_in_float) {
    return timer.time([&] { return at::mm(left, right, at::kFloat); }).forward;
  }
  return timer.time([&] { return at::mm(left, right); }).forward;
}

void time_products(const Workload& workload, const OperatorTiming& timing, Timer& timer, OperatorTable& table)
{
  constexpr double part_of_memory = 0.1;
  const bool sums_in_float = timer.is_on_gpu() && workload.dtype != DType::Float32;
  std::map<ProductLayout, FlopsPerSecond> fastest;
  for (const auto& product : products_to_time(workload)) {
    const auto numbers = static_cast<double>(product.m * product.k + product.k * product.n + product.m * product.n);
    const bool fits = Bytes(4 * numbers) <= part_of_memory * timing.memory;
    FlopsPerSecond& rate = fastest[product.layout];
    if (fits && (rate.value == 0 || product.work() / rate <= longest_pass(timing))) {
      const Seconds time = time_of(product, timer, sums_in_float);
      table.products.push_back({product, time});
      rate = std::max(rate, product.work() / time);
    }
    timing.on_part();
  }
}

/// The first layer of the workload with what a block has between its products.
template <typename Has>
compute::TransformerLayer layer_with(const Workload& workload, Has has)
{
  for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
    auto found = operators_of(workload, layer, 1);
    if (has(found)) return found;
  }
  return operators_of(workload, 0, 1);
}

class BoundTimes {
 public:
  BoundTimes(const Workload& workload, Timer& timer)
      : timer_(timer),
        dropout_(workload.training.dropout),
        is_gated_(layer_with(workload, [](const auto& layer) { return layer.is_gated; }).is_gated),
        hidden_(static_cast<std::int64_t>(operators_of(workload, 0, 1).hidden)),
        sequence_(extent(std::min(workload.sequence, longest_row)))
  {
  }

  /// Of `elements()` numbers; backward as forward where the gradient takes no operator of its own, or the same one.
  PassTimes time(BoundOperator which)
  {
    switch (which) {
      case BoundOperator::Norm:
        return norm();
      case BoundOperator::Activation:
        return activation();
      case BoundOperator::Residual:
        return residual();
      case BoundOperator::Softmax:
        return softmax();
      case BoundOperator::Copy:
        break;
    }
    const auto from = timer_.random(row_of(1));
    return both_ways(timer_.time([&] { return from.clone(); }));
  }

  /// Rows of `length` numbers.
  std::vector<std::int64_t> row_of(std::int64_t length) const
  {
    return {std::max<std::int64_t>(1, elements() / length), length};
  }
  /// Numbers of an operator whose rows have this length.
  double numbers(BoundOperator which) const
  {
    if (which == BoundOperator::Softmax) return static_cast<double>(squares() * sequence_ * sequence_);
    const auto shape = row_of(which == BoundOperator::Norm ? hidden_ : 1);
    return static_cast<double>(shape[0] * shape[1]);
  }

 private:
  static constexpr std::uint64_t longest_row = 1024;

  /// More than caches hold.
  std::int64_t elements() const { return std::int64_t{1} << (timer_.is_on_gpu() ? 25U : 21U); }
  std::int64_t squares() const { return std::max<std::int64_t>(1, elements() / (sequence_ * sequence_)); }

  static PassTimes both_ways(const PassTimes& times) { return {times.forward, times.forward}; }

  PassTimes norm()
  {
    const auto input = timer_.random_input(row_of(hidden_));
    const auto weight = timer_.random_input({hidden_});
    if (is_gated_) {
      return timer_.time([&] { return at::rms_norm(input, {hidden_}, weight); }, {input, weight});
    }
    const auto bias = timer_.random_input({hidden_});
    return timer_.time([&] { return at::layer_norm(input, {hidden_}, weight, bias); }, {input, weight, bias});
  }
  PassTimes activation()
  {
    const auto input = timer_.random_input(row_of(1));
    if (!is_gated_) return timer_.time([&] { return at::gelu(input); }, {input});
    const auto gated = timer_.random_input(row_of(1));
    return timer_.time([&] { return at::silu(input) * gated; }, {input, gated});
  }
  PassTimes residual()
  {
    const auto skipped = timer_.random(row_of(1));
    const auto input = timer_.random_input(row_of(1));
    // The gradients of both paths are added, too.
    if (dropout_ == 0) return both_ways(timer_.time([&] { return input + skipped; }));
    return timer_.time([&] { return at::dropout(input, dropout_, true) + skipped; }, {input});
  }
  PassTimes softmax()
  {
    const auto scores = timer_.random_input({squares(), sequence_, sequence_});
    const auto hides = at::ones({sequence_, sequence_}, scores.options().dtype(at::kBool).requires_grad(false)).triu(1);
    constexpr auto never = -std::numeric_limits<double>::infinity();
    return timer_.time(
        [&] {
          const auto weights = at::softmax(scores.masked_fill(hides, never), -1);
          return dropout_ > 0 ? at::dropout(weights, dropout_, true) : weights;
        },
        {scores});
  }

  Timer& timer_;
  double dropout_;
  bool is_gated_;
  std::int64_t hidden_;
  std::int64_t sequence_;
};

void time_bound_operators(const Workload& workload, const OperatorTiming& timing, Timer& timer, OperatorTable& table)
{
  BoundTimes times(workload, timer);
  for (const auto which : bound_operators) {
    const auto bytes = compute::least_bytes(which, workload);
    const double units = times.numbers(which) * size_of(workload.dtype) / 2;
    const PassTimes measured = times.time(which);
    table.memory_bound[which] = {Bytes(units * bytes.forward) / measured.forward,
                                 Bytes(units * bytes.backward) / measured.backward};
    timing.on_part();
  }
}

void time_attention(const Workload& workload, const OperatorTiming& timing, Timer& timer, OperatorTable& table)
{
  const auto layer = layer_with(workload, [](const auto& found) { return found.scores > 0; });
  std::vector<std::uint64_t> lengths(std::begin(sequences), std::end(sequences));
  lengths.push_back(workload.sequence);
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  const auto heads = static_cast<std::uint64_t>(layer.hidden / std::max(layer.width, 1.0));
  const auto width = static_cast<std::uint64_t>(layer.width);
  std::optional<MeasuredAttention> last;
  for (const auto length : lengths) {
    const double longer = last ? static_cast<double>(length) / static_cast<double>(last->sequence) : 1;
    const bool is_affordable = !last || longer * longer * (last->forward + last->backward) <= longest_pass(timing);
    if (width > 0 && is_affordable) {
      const std::vector<std::int64_t> shape = {1, extent(heads), extent(length), extent(width)};
      const Tensors inputs = {timer.random_input(shape), timer.random_input(shape), timer.random_input(shape)};
      constexpr std::int64_t unfused = 0;  // at::SDPBackend::math
      if (at::_fused_sdp_choice(inputs[0], inputs[1], inputs[2], {}, 0, true) != unfused) {
        const PassTimes times = timer.time(
            [&] { return at::scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], {}, 0, true); }, inputs);
        last = {1, heads, length, width, times.forward, times.backward};
        table.attention.push_back(*last);
      }
    }
    timing.on_part();
  }
}

}  // namespace

void time_operators(const Workload& workload, const OperatorTiming& timing, OperatorTable& table)
{
  std::optional<RoundedProducts> rounded;
  if (workload.has_tf32_products) rounded.emplace();
  Timer timer(timing, workload.dtype);
  table.dtype = workload.dtype;
  table.tf32 = workload.has_tf32_products;
  time_products(workload, timing, timer, table);
  time_bound_operators(workload, timing, timer, table);
  time_attention(workload, timing, timer, table);
  const auto small = timer.random({1});
  table.launch = timer.host_time([&] { return small + small; });
  timing.on_part();
}

std::size_t operator_parts(const Workload& workload)
{
  const bool is_listed =
      std::find(std::begin(sequences), std::end(sequences), workload.sequence) != std::end(sequences);
  return products_to_time(workload).size() + std::size(bound_operators) + std::size(sequences) + (is_listed ? 0 : 1) +
         1;
}

}  // namespace isobar::exec
