#pragma once

namespace isobar::exec {

/// Result of an evaluation: sums over all labels that are not ignored.
struct EvaluationSums {
  double loss = 0;     ///< cross-entropy, in nats
  double labels = 0;   ///< number of labels
  double correct = 0;  ///< labels that are the most likely class or token
};

}  // namespace isobar::exec
