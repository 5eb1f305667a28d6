package dev.romou.sample

import dev.romou.Model

private val MEAN = floatArrayOf(0.485f, 0.456f, 0.406f)
private val DEVIATION = floatArrayOf(0.229f, 0.224f, 0.225f)

/** Width and height of the picture that the model takes: its first input is (1, 3, height, width) of float32. */
fun pictureSize(model: Model): Pair<Int, Int> = model.inputs[0].shape.let { Pair(it[3].toInt(), it[2].toInt()) }

/**
 * Return the best classes with their scores, the best one first.
 * pixels: the picture's rows, 0xAARRGGBB each, as Bitmap.getPixels writes them.
 */
fun classify(model: Model, pixels: IntArray, most: Int = 5): List<Pair<Int, Float>> {
    val input = FloatArray(3 * pixels.size)
    for (i in pixels.indices) {
        for (c in 0..2) {
            input[c * pixels.size + i] = ((pixels[i] shr (16 - 8 * c) and 0xff) / 255f - MEAN[c]) / DEVIATION[c]
        }
    }
    model.set(model.inputs[0].name, input)
    model.run()
    val scores = model.floats(model.outputs[0].name)
    return scores.indices.sortedByDescending { scores[it] }.take(most).map { Pair(it, scores[it]) }
}
