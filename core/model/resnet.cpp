#include "core/model/append_layer.hpp"
#include "core/model/models.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace isobar {

namespace {

/// Sums the convolutions of one layer, each with its batch normalisation.
struct Convolutions {
  double batch;
  std::uint64_t parameters = 0;
  double multiply_adds = 0;
  std::uint64_t largest = 0;  // number of weights of one of them
  double statistics = 0;      // bytes of the mean and the deviation of each channel

  /// @returns the elements of its output for the whole batch.
  double add(std::uint64_t kernel, std::uint64_t from, std::uint64_t to, std::uint64_t image)
  {
    const std::uint64_t weights = kernel * kernel * from * to;
    const double pixels = batch * static_cast<double>(image * image);
    parameters += weights + 2 * to;
    largest = std::max(largest, weights);
    statistics += 8 * static_cast<double>(to);
    multiply_adds += pixels * static_cast<double>(weights);
    return pixels * static_cast<double>(to);
  }
};

/// The side of an image after a convolution or pooling of stride 2 with a padding of half the (odd) kernel.
std::uint64_t halved(std::uint64_t image)
{
  return (image + 1) / 2;
}

}  // namespace

void build_resnet(const ResnetSizes& sizes, Workload& workload)
{
  const auto B = static_cast<double>(workload.micro_batch);
  const double z = size_of(workload.dtype);
  auto elements = [&](std::uint64_t image, std::uint64_t channels) {
    return B * static_cast<double>(image * image * channels);
  };
  const KernelMemory kernels(workload);
  workload.input = Bytes(z * elements(sizes.image, 3));

  std::uint64_t image = halved(sizes.image);
  std::uint64_t channels = 64;
  Convolutions stem{B};
  const double convolved = stem.add(7, 3, channels, image);
  image = halved(image);
  const double pooled = elements(image, channels);
  // Gradients of weights, also in another order of their elements, as convolutions want them; the images of a
  // convolution and their gradients likewise.
  const auto weight_gradients = [](const Convolutions& convolutions) {
    return 8 * static_cast<double>(convolutions.largest);
  };
  const auto casts = [&](const Convolutions& convolutions) {
    return kernels.cast(static_cast<double>(convolutions.parameters));
  };
  const double stem_activations = workload.input.value + z * 2 * convolved + 8 * pooled;
  const LayerSizes stem_sizes = {.name = "stem",
                                 .parameters = stem.parameters,
                                 .multiply_adds = stem.multiply_adds,
                                 .activations = stem_activations,
                                 .output = z * pooled,
                                 .kept = stem_activations + stem.statistics + casts(stem),
                                 .passing = z * (2 * convolved + pooled) + weight_gradients(stem)};
  append_layer(workload, stem_sizes);

  const auto blocks = blocks_per_stage(sizes);
  for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
    const std::uint64_t width = std::uint64_t{64} << stage;
    for (std::uint64_t i = 0; i < blocks[stage]; ++i) {
      const double input = elements(image, channels);
      const std::uint64_t image_before = image;
      if (i == 0 && stage > 0) image = halved(image);
      Convolutions block{B};
      const double first = block.add(1, channels, width, image_before);
      const double second = block.add(3, width, width, image);
      const double third = block.add(1, width, 4 * width, image);
      const double shortcut = i == 0 ? block.add(1, channels, 4 * width, image) : 0;
      channels = 4 * width;
      const double activations = z * (input + 2 * first + 2 * second + third + shortcut);
      append_layer(workload, {.name = fmt::format("stage{}.block{}", stage, i),
                              .parameters = block.parameters,
                              .multiply_adds = block.multiply_adds,
                              .activations = activations,
                              .output = z * third,
                              .kept = activations + block.statistics + casts(block),
                              .passing = z * (4 * third + 2 * (first + second)) + weight_gradients(block)});
    }
  }

  const auto classes = static_cast<double>(sizes.classes);
  const double weights = static_cast<double>(channels) * classes;
  const double activations = z * (elements(image, channels) + elements(1, channels) + B * classes);
  append_layer(workload, {.name = "head",
                          .parameters = channels * sizes.classes + sizes.classes,
                          .multiply_adds = B * weights,
                          .activations = activations,
                          .output = z * B * classes,
                          .kept = activations + 4 * B * classes + 64 * B + kernels.cast(weights + classes),
                          .passing = 4 * (weights + classes) + z * elements(image, channels)});
  count_in_each_pass(workload, stem_sizes);
}

}  // namespace isobar
