package dev.romou.sample

import android.app.Activity
import android.content.Intent
import android.graphics.Bitmap
import android.graphics.BitmapFactory
import android.os.Bundle
import android.widget.TextView
import dev.romou.Model
import dev.romou.unpackedModel
import java.io.File
import kotlin.concurrent.thread

/** Lets the user choose a picture, and shows its five best classes. Started with `--ez bench true`, times the model instead. */
class MainActivity : Activity() {
    private lateinit var text: TextView

    override fun onCreate(state: Bundle?) {
        super.onCreate(state)
        text = TextView(this)
        setContentView(text)
        if (intent.getBooleanExtra("bench", false)) {
            show { model -> bench(model, "model").also { File(getExternalFilesDir(null), "bench.json").writeText(it) } }
        } else {
            startActivityForResult(Intent(Intent.ACTION_GET_CONTENT).setType("image/*"), 1)
        }
    }

    override fun onActivityResult(request: Int, result: Int, data: Intent?) {
        super.onActivityResult(request, result, data)
        val chosen = data?.data ?: return finish()
        val picture = contentResolver.openInputStream(chosen)!!.use { BitmapFactory.decodeStream(it) } ?: return finish()
        show { model -> describe(model, picture) }
    }

    /** Show the text that `use` makes with the model. The first start compiles kernels: not on the thread that draws. */
    private fun show(use: (Model) -> String) {
        text.text = "…"
        thread {
            val answer = try {
                Model(unpackedModel(this, "1")).use(use)
            } catch (error: Exception) {
                error.message ?: error.toString()
            }
            runOnUiThread { text.text = answer }
        }
    }

    private fun describe(model: Model, picture: Bitmap): String {
        val (width, height) = pictureSize(model)
        val pixels = IntArray(width * height)
        Bitmap.createScaledBitmap(picture, width, height, true).getPixels(pixels, 0, width, 0, 0, width, height)
        return classify(model, pixels).joinToString("\n") { (number, score) -> "class $number: $score" } + "\n\n" + model.about
    }
}
