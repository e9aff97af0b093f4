#pragma once

namespace isobar::exec {

/// What an evaluation found: sums over all labels that count.
struct EvaluationSums {
  double loss = 0;     ///< cross-entropy of each label, in nats
  double labels = 0;   ///< how many
  double correct = 0;  ///< where the most likely class, or token, is the label
};

}  // namespace isobar::exec
