#include "core/model/append_layer.hpp"
#include "core/model/models.hpp"

#include <fmt/format.h>

namespace isobar {

namespace {

/// Sums the convolutions of one layer, each with its batch normalisation.
struct Convolutions {
  double batch;
  std::uint64_t parameters = 0;
  double multiply_adds = 0;

  /// @returns the elements of its output for the whole batch.
  double add(std::uint64_t kernel, std::uint64_t from, std::uint64_t to, std::uint64_t image)
  {
    const std::uint64_t weights = kernel * kernel * from * to;
    const double pixels = batch * static_cast<double>(image * image);
    parameters += weights + 2 * to;
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
  workload.input = Bytes(z * elements(sizes.image, 3));

  std::uint64_t image = halved(sizes.image);
  std::uint64_t channels = 64;
  Convolutions stem{B};
  const double convolved = stem.add(7, 3, channels, image);
  image = halved(image);
  const double pooled = elements(image, channels);
  append_layer(workload, {.name = "stem",
                          .parameters = stem.parameters,
                          .multiply_adds = stem.multiply_adds,
                          .activations = workload.input.value + z * 2 * convolved + 8 * pooled,
                          .output = z * pooled});

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
      append_layer(workload, {.name = fmt::format("stage{}.block{}", stage, i),
                              .parameters = block.parameters,
                              .multiply_adds = block.multiply_adds,
                              .activations = z * (input + 2 * first + 2 * second + third + shortcut),
                              .output = z * third});
    }
  }

  const auto classes = static_cast<double>(sizes.classes);
  append_layer(workload, {.name = "head",
                          .parameters = channels * sizes.classes + sizes.classes,
                          .multiply_adds = B * static_cast<double>(channels) * classes,
                          .activations = z * (elements(image, channels) + elements(1, channels) + B * classes),
                          .output = z * B * classes});
}

}  // namespace isobar
