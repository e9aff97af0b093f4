#include "exec/model/layers/model_layer.hpp"

#include <ATen/ATen.h>

#include <cmath>

/// Bottleneck ResNets: He et al. 2015 (arXiv 1512.03385), with the stride in the 3x3 convolution, as in torchvision.
namespace isobar::exec {

namespace {

/// A layer of convolutions without bias, each followed by a batch normalisation.
class ConvolutionLayer : public ModelLayer {
 protected:
  using ModelLayer::ModelLayer;

  struct Convolution {
    std::int64_t stride;
    std::size_t weight, norm_weight, norm_bias;
    at::Tensor running_mean, running_variance;  // no parameters: no gradient, not counted
  };

  Convolution add_convolution(const std::string& name, std::uint64_t kernel, std::uint64_t from, std::uint64_t to,
                              std::int64_t stride = 1)
  {
    // He et al. 2015 (arXiv 1502.01852), section 2.2, with the fan of the backward pass.
    const auto deviation = std::sqrt(2 / static_cast<double>(kernel * kernel * to));
    const auto weight = add_normal(name + ".weight", {to, from, kernel, kernel}, deviation);
    const auto norm_weight = add_constant(name + ".norm.weight", {to}, 1);
    const auto norm_bias = add_constant(name + ".norm.bias", {to}, 0);
    const auto zeros = at::zeros_like(parameter(norm_bias)).detach();
    return {stride, weight, norm_weight, norm_bias, zeros, at::ones_like(zeros)};
  }

  /// Convolves with a padding of half the kernel, then normalises over the micro-batch.
  at::Tensor apply(const Convolution& convolution, const at::Tensor& images) const
  {
    const auto& weight = parameter(convolution.weight);
    const auto convolved = at::conv2d(images, weight, {}, convolution.stride, weight.size(2) / 2);
    return at::batch_norm(convolved, parameter(convolution.norm_weight), parameter(convolution.norm_bias),
                          convolution.running_mean, convolution.running_variance, /*training=*/true, /*momentum=*/0.1,
                          /*eps=*/1e-5, at::globalContext().userEnabledCuDNN());
  }

  using ModelLayer::apply;
};

class ResnetStem final : public ConvolutionLayer {
 public:
  explicit ResnetStem(const LayerSetup& setup)
      : ConvolutionLayer(setup), convolution_(add_convolution("convolution", 7, 3, 64, 2))
  {
  }

  Tensors forward(const Tensors& inputs, const RandomKey& /*key*/) override
  {
    return {in_dtype(at::max_pool2d(at::relu(apply(convolution_, inputs.at(0))), 3, 2, 1))};
  }

 private:
  Convolution convolution_;
};

class ResnetBlock final : public ConvolutionLayer {
 public:
  ResnetBlock(const LayerSetup& setup, std::uint64_t from, std::uint64_t width, std::int64_t stride)
      : ConvolutionLayer(setup),
        first_(add_convolution("first", 1, from, width)),
        second_(add_convolution("second", 3, width, width, stride)),
        third_(add_convolution("third", 1, width, 4 * width))
  {
    if (from != 4 * width || stride != 1) shortcut_ = add_convolution("shortcut", 1, from, 4 * width, stride);
  }

  Tensors forward(const Tensors& inputs, const RandomKey& /*key*/) override
  {
    const auto& images = inputs.at(0);
    const auto narrow = at::relu(apply(second_, at::relu(apply(first_, images))));
    const auto residual = shortcut_ ? apply(*shortcut_, images) : images;
    return {in_dtype(at::relu(apply(third_, narrow) + residual))};
  }

 private:
  Convolution first_, second_, third_;
  std::optional<Convolution> shortcut_;
};

class ResnetHead final : public ModelLayer {
 public:
  ResnetHead(const LayerSetup& setup, std::uint64_t channels, std::uint64_t classes)
      : ModelLayer(setup), classes_(add_linear("classes", channels, classes))
  {
  }

  Tensors forward(const Tensors& inputs, const RandomKey& /*key*/) override
  {
    return {in_dtype(apply(classes_, inputs.at(0).mean({2, 3})))};
  }

 private:
  Linear classes_;
};

}  // namespace

std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, const ResnetSizes& sizes)
{
  if (setup.layer == 0) return std::make_unique<ResnetStem>(setup);
  std::uint64_t block = setup.layer - 1;
  std::uint64_t channels = 64;
  std::uint64_t width = 64;
  for (const auto blocks : blocks_per_stage(sizes)) {
    if (block < blocks) {
      const bool opens = block == 0;
      // The first stage keeps the image's size, which the stem's pooling has already halved.
      return std::make_unique<ResnetBlock>(setup, opens ? channels : 4 * width, width, opens && width > 64 ? 2 : 1);
    }
    block -= blocks;
    channels = 4 * width;
    width *= 2;
  }
  return std::make_unique<ResnetHead>(setup, channels, sizes.classes);
}

}  // namespace isobar::exec
